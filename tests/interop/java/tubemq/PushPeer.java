import com.google.gson.JsonObject;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.inlong.tubemq.client.common.PeerInfo;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.MessageListener;
import org.apache.inlong.tubemq.client.consumer.PushMessageConsumer;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.corebase.Message;

/** A Java push consumer: prints each package, and can throw from its listener to have some again. */
final class PushPeer implements Driver.Peer {
    private final String name;
    private final TubeMultiSessionFactory factory;
    private final PushMessageConsumer consumer;
    private final AtomicLong toThrow;

    PushPeer(String name, JsonObject request) throws Exception {
        this.name = name;
        toThrow = new AtomicLong(Forms.number(request, "throw_first", 0));
        ConsumerConfig config = Forms.consumerConfig(request);
        factory = new TubeMultiSessionFactory(config);
        consumer = factory.createPushConsumer(config);
        for (Map.Entry<String, TreeSet<String>> topic : Forms.topics(request).entrySet()) {
            consumer.subscribe(topic.getKey(), topic.getValue(), new Listener());
        }
        consumer.completeSubscribe();
    }

    private final class Listener implements MessageListener {
        @Override
        public void receiveMessages(PeerInfo from, List<Message> messages) {
            boolean thrown = toThrow.getAndDecrement() > 0;
            Map<String, Object> form = new LinkedHashMap<>();
            form.put("on", name);
            form.put("event", thrown ? "thrown" : "package");
            form.put("partition", from.getPartitionKey());
            form.put("offset", from.getCurrOffset());
            form.put("messages", Forms.forms(messages));
            Driver.print(form);
            if (thrown) {
                throw new IllegalStateException("told to throw");
            }
        }

        @Override
        public Executor getExecutor() {
            return null;
        }

        @Override
        public void stop() {
            // Nothing is held.
        }
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "partitions":
                Map<String, Long> offsets = new TreeMap<>();
                consumer.getCurConsumedPartitions().forEach((key, info) -> offsets.put(key, info.getCurrOffset()));
                return offsets;
            case "pause":
                consumer.pauseConsume();
                return true;
            case "resume":
                consumer.resumeConsume();
                return true;
            default:
                throw new IllegalArgumentException(action);
        }
    }

    @Override
    public void close() throws Throwable {
        consumer.shutdown();
        factory.shutdown();
    }
}
