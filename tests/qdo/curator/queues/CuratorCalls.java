import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.MultiItem;
import org.apache.curator.framework.recipes.queue.QueueBase;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryOneTime;

/**
 * Uses Curator's queues as the lines of standard input say, one answer a line, with tabs between the parts.
 *
 * <p>Messages that its consumer is given are answers too: {@code got <message>}. A message that begins with "hold" is
 * kept in hand until {@code go}; one that begins with "fail" fails.
 */
public class CuratorCalls implements QueueConsumer<String>, QueueSerializer<String> {
    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private final Semaphore gate = new Semaphore(0);
    private final CuratorFramework client;
    private QueueBase<String> queue;
    private SimpleDistributedQueue simple;

    private CuratorCalls(CuratorFramework client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        int session = Integer.parseInt(args[1]);
        CuratorFramework client =
                CuratorFrameworkFactory.newClient(args[0], session, 60000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        CuratorCalls calls = new CuratorCalls(client);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        calls.say("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                calls.say("done\t" + calls.call(line.split("\t", -1)));
            } catch (Exception error) {
                calls.say("failed\t" + error);
            }
        }
        System.exit(0);
    }

    private Object call(String[] words) throws Exception {
        switch (words[0]) {
            case "open": // kind, path, lock path or nothing, "consume" or nothing
                open(words[1], words[2], words[3], words[4].isEmpty() ? null : this);
                return "";
            case "put": // messages separated by commas, and what the kind wants beside
                put(Arrays.asList(words[1].split(",", -1)), words[2]);
                return "";
            case "go":
                gate.release();
                return "";
            case "remove":
                return ((DistributedIdQueue<String>) queue).remove(words[1]);
            case "offer":
                return simple.offer(serialize(words[1]));
            case "poll":
                byte[] data = simple.poll(Long.parseLong(words[1]), TimeUnit.MILLISECONDS);
                return data == null ? "" : deserialize(data);
            case "close":
                queue.close();
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private void open(String kind, String path, String lockPath, QueueConsumer<String> consumer) throws Exception {
        if (kind.equals("simple")) {
            simple = new SimpleDistributedQueue(client, path);
            return;
        }
        QueueBuilder<String> builder = QueueBuilder.builder(client, consumer, this, path).putInBackground(false);
        if (!lockPath.isEmpty()) {
            builder.lockPath(lockPath);
        }
        switch (kind) {
            case "queue":
                queue = builder.buildQueue();
                break;
            case "priority":
                queue = builder.buildPriorityQueue(1);
                break;
            case "delay":
                queue = builder.buildDelayQueue();
                break;
            default:
                queue = builder.buildIdQueue();
        }
        queue.start();
    }

    @SuppressWarnings("unchecked")
    private void put(List<String> messages, String more) throws Exception {
        Iterator<String> each = new ArrayList<>(messages).iterator();
        MultiItem<String> items = () -> each.hasNext() ? each.next() : null;
        if (queue instanceof DistributedQueue) {
            ((DistributedQueue<String>) queue).putMulti(items);
        } else if (queue instanceof DistributedPriorityQueue) {
            ((DistributedPriorityQueue<String>) queue).putMulti(items, Integer.parseInt(more));
        } else if (queue instanceof DistributedDelayQueue) {
            ((DistributedDelayQueue<String>) queue).putMulti(items, Long.parseLong(more));
        } else {
            ((DistributedIdQueue<String>) queue).put(messages.get(0), more);
        }
    }

    private synchronized void say(String line) {
        out.println(line);
    }

    @Override
    public void consumeMessage(String message) throws Exception {
        say("got\t" + message);
        if (message.startsWith("hold")) {
            gate.acquire();
        } else if (message.startsWith("fail")) {
            throw new IllegalStateException(message);
        }
    }

    @Override
    public void stateChanged(CuratorFramework framework, ConnectionState state) {}

    @Override
    public byte[] serialize(String message) {
        return message.getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public String deserialize(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
