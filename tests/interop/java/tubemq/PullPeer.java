import com.google.gson.JsonObject;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;

/** A Java pull consumer: step by step, or following (get, print, confirm) until told to stop. */
final class PullPeer implements Driver.Peer {
    private static final int NOT_FOUND = 404;

    private final String name;
    private final TubeMultiSessionFactory factory;
    private final PullMessageConsumer consumer;
    private Thread follower;
    private volatile boolean following;

    PullPeer(String name, JsonObject request) throws Exception {
        this.name = name;
        ConsumerConfig config = Forms.consumerConfig(request);
        factory = new TubeMultiSessionFactory(config);
        consumer = factory.createPullConsumer(config);
        for (Map.Entry<String, TreeSet<String>> topic : Forms.topics(request).entrySet()) {
            consumer.subscribe(topic.getKey(), topic.getValue());
        }
        consumer.completeSubscribe();
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "get":
                return get(Forms.number(request, "wait_ms", 10_000));
            case "confirm":
                return form(consumer.confirmConsume(
                        request.get("context").getAsString(), Forms.flag(request, "consumed", true)));
            case "partitions":
                return partitions();
            case "follow":
                following = true;
                follower = new Thread(this::follow, "follow-" + name);
                follower.start();
                return true;
            case "stop":
                stop();
                return true;
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private Object partitions() throws Exception {
        Map<String, Long> offsets = new TreeMap<>();
        consumer.getCurConsumedPartitions().forEach((key, info) -> offsets.put(key, info.getCurrOffset()));
        return offsets;
    }

    /** The first package with messages; what the last try said when none came in time. */
    private Object get(long waitMs) throws Exception {
        long until = System.currentTimeMillis() + waitMs;
        while (true) {
            ConsumerResult result = consumer.getMessage();
            boolean empty = result.getMessageList() == null || result.getMessageList().isEmpty();
            if (result.isSuccess() && empty) {
                consumer.confirmConsume(result.getConfirmContext(), true);
            }
            boolean wanted = result.isSuccess() && !empty;
            if (wanted || System.currentTimeMillis() >= until) {
                return form(result);
            }
        }
    }

    private void follow() {
        while (following) {
            try {
                step();
            } catch (InterruptedException stop) {
                return;
            } catch (Exception brokerGone) {
                System.err.println("follow " + name + ": " + brokerGone); // a confirm that fails throws; go on
            }
        }
    }

    private void step() throws Exception {
        ConsumerResult result = consumer.getMessage();
        if (result.isSuccess()) {
            Map<String, Object> form = form(result);
            form.put("on", name);
            form.put("event", "package");
            Driver.print(form);
            consumer.confirmConsume(result.getConfirmContext(), true);
        } else if (result.getErrCode() != NOT_FOUND) {
            Thread.sleep(20);
        }
    }

    private void stop() throws InterruptedException {
        following = false;
        if (follower != null) {
            follower.join();
            follower = null;
        }
    }

    static Map<String, Object> form(ConsumerResult result) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("success", result.isSuccess());
        form.put("code", result.getErrCode());
        form.put("text", result.getErrMsg());
        if (result.isSuccess()) {
            form.put("partition", result.getPartitionKey());
            form.put("context", result.getConfirmContext());
            form.put("offset", result.getCurrOffset());
            form.put("max_offset", result.getMaxOffset());
            form.put("messages", Forms.forms(result.getMessageList()));
        }
        return form;
    }

    @Override
    public void close() throws Throwable {
        stop();
        consumer.shutdown();
        factory.shutdown();
    }
}
