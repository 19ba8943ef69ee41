import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.bazaarvoice.emodb.queue.api.BaseQueueService;
import com.bazaarvoice.emodb.queue.api.DedupQueueService;
import com.bazaarvoice.emodb.queue.api.Message;
import com.bazaarvoice.emodb.queue.api.MoveQueueStatus;
import com.bazaarvoice.emodb.queue.api.QueueService;
import com.bazaarvoice.emodb.queue.client.DedupQueueClientFactory;
import com.bazaarvoice.emodb.queue.client.DedupQueueFixedHostDiscoverySource;
import com.bazaarvoice.emodb.queue.client.QueueClientFactory;
import com.bazaarvoice.emodb.queue.client.QueueFixedHostDiscoverySource;
import com.bazaarvoice.ostrich.pool.ServicePoolBuilder;
import com.bazaarvoice.ostrich.retry.ExponentialBackoffRetry;
import com.codahale.metrics.MetricRegistry;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.slf4j.LoggerFactory;

/** Calls the queue service with its own client: a call per line of standard input, its result as a line of output. */
public class EmodbCalls {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        ((Logger) LoggerFactory.getLogger("ROOT")).setLevel(Level.ERROR);
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BaseQueueService plain = plain(args[0], args[1]);
        BaseQueueService dedup = dedup(args[0], args[1]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = JSON.readTree(line);
            Map<String, Object> said = new LinkedHashMap<>();
            try {
                said.put("result", call("dedup".equals(asked.get(0).asText()) ? dedup : plain, asked));
            } catch (Throwable error) {
                said.put("error", error.getClass().getName());
                said.put("message", error.getMessage());
            }
            out.println(JSON.writeValueAsString(said));
        }
        System.exit(0);
    }

    private static BaseQueueService plain(String host, String key) {
        MetricRegistry metrics = new MetricRegistry();
        return ServicePoolBuilder.create(QueueService.class)
                .withHostDiscoverySource(new QueueFixedHostDiscoverySource(host))
                .withServiceFactory(QueueClientFactory.forCluster("local_default", metrics).usingCredentials(key))
                .withMetricRegistry(metrics)
                .buildProxy(new ExponentialBackoffRetry(5, 50, 1000, TimeUnit.MILLISECONDS));
    }

    private static BaseQueueService dedup(String host, String key) {
        MetricRegistry metrics = new MetricRegistry();
        return ServicePoolBuilder.create(DedupQueueService.class)
                .withHostDiscoverySource(new DedupQueueFixedHostDiscoverySource(host))
                .withServiceFactory(DedupQueueClientFactory.forCluster("local_default", metrics).usingCredentials(key))
                .withMetricRegistry(metrics)
                .buildProxy(new ExponentialBackoffRetry(5, 50, 1000, TimeUnit.MILLISECONDS));
    }

    private static Object call(BaseQueueService service, JsonNode asked) throws Exception {
        String name = asked.get(1).asText();
        String queue = asked.path(2).asText();
        JsonNode more = asked.path(3);
        switch (name) {
            case "send":
                service.send(queue, JSON.treeToValue(more, Object.class));
                return null;
            case "sendAll":
                List<Object> messages = new ArrayList<>();
                more.forEach(each -> messages.add(JSON.convertValue(each, Object.class)));
                service.sendAll(queue, messages);
                return null;
            case "sendAllByQueue":
                Map<String, List<Object>> byQueue = new LinkedHashMap<>();
                asked.get(2).fields().forEachRemaining(entry -> {
                    List<Object> some = new ArrayList<>();
                    entry.getValue().forEach(each -> some.add(JSON.convertValue(each, Object.class)));
                    byQueue.put(entry.getKey(), some);
                });
                service.sendAll(byQueue);
                return null;
            case "poll":
                return shown(service.poll(queue, Duration.ofSeconds(more.asLong()), asked.get(4).asInt()));
            case "peek":
                return shown(service.peek(queue, more.asInt()));
            case "ack":
                service.acknowledge(queue, ids(more));
                return null;
            case "renew":
                service.renew(queue, ids(more), Duration.ofSeconds(asked.get(4).asLong()));
                return null;
            case "size":
                return service.getMessageCount(queue);
            case "sizeUpTo":
                return service.getMessageCountUpTo(queue, more.asLong());
            case "claimCount":
                return service.getClaimCount(queue);
            case "unclaimAll":
                service.unclaimAll(queue);
                return null;
            case "purge":
                service.purge(queue);
                return null;
            case "move":
                return service.moveAsync(queue, more.asText());
            case "moveStatus":
                MoveQueueStatus status = service.getMoveStatus(queue);
                return List.of(status.getFrom(), status.getTo(), status.getStatus().toString());
            default:
                throw new IllegalStateException("no such call: " + name);
        }
    }

    private static List<String> ids(JsonNode given) {
        List<String> ids = new ArrayList<>();
        given.forEach(each -> ids.add(each.asText()));
        return ids;
    }

    private static List<Map<String, Object>> shown(List<Message> messages) {
        List<Map<String, Object>> found = new ArrayList<>();
        for (Message message : messages) {
            Map<String, Object> each = new LinkedHashMap<>();
            each.put("id", message.getId());
            each.put("payload", message.getPayload());
            found.add(each);
        }
        return found;
    }
}
