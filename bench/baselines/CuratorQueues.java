import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryOneTime;

/**
 * Puts into one of Curator's queues, or consumes from it, as the lines of standard input say; answers each with the
 * seconds that it took: {@code put PATH COUNT BYTES} and {@code consume PATH LOCK_PATH COUNT}, - for no lock path.
 */
public class CuratorQueues implements QueueSerializer<byte[]> {
    private static final long PATIENCE = 600;

    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 60000, 60000, new RetryOneTime(100));
        client.start();
        client.blockUntilConnected();
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            long nanos = words[0].equals("put")
                    ? put(client, words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]))
                    : consume(client, words[1], words[2], Integer.parseInt(words[3]));
            System.out.println(nanos / 1e9);
        }
        client.close();
    }

    private static long put(CuratorFramework client, String path, int count, int bytes) throws Exception {
        DistributedQueue<byte[]> queue =
                QueueBuilder.builder(client, null, new CuratorQueues(), path).buildQueue();
        queue.start();
        byte[] message = new byte[bytes];
        long began = System.nanoTime();
        for (int number = 0; number < count; number++) {
            queue.put(message);
        }
        if (!queue.flushPuts(PATIENCE, TimeUnit.SECONDS)) {
            throw new IllegalStateException("puts were not stored");
        }
        long ended = System.nanoTime();
        queue.close();
        return ended - began;
    }

    private static long consume(CuratorFramework client, String path, String lockPath, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        QueueConsumer<byte[]> consumer = new QueueConsumer<byte[]>() {
            @Override
            public void consumeMessage(byte[] message) {
                left.countDown();
            }

            @Override
            public void stateChanged(CuratorFramework framework, ConnectionState state) {}
        };
        QueueBuilder<byte[]> builder = QueueBuilder.builder(client, consumer, new CuratorQueues(), path);
        if (!lockPath.equals("-")) {
            builder.lockPath(lockPath);
        }
        DistributedQueue<byte[]> queue = builder.buildQueue();
        long began = System.nanoTime();
        queue.start();
        if (!left.await(PATIENCE, TimeUnit.SECONDS)) {
            throw new IllegalStateException("messages did not come");
        }
        while (client.checkExists().forPath(path).getNumChildren() > 0) {
            Thread.sleep(1);
        }
        long ended = System.nanoTime();
        queue.close();
        return ended - began;
    }

    @Override
    public byte[] serialize(byte[] message) {
        return message;
    }

    @Override
    public byte[] deserialize(byte[] bytes) {
        return bytes;
    }
}
