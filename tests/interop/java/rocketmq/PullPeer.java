import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** A Java lite pull consumer: subscribed or with queues of its own. */
final class PullPeer implements Driver.Peer {
    private final DefaultLitePullConsumer consumer;

    PullPeer(String name, JsonObject request) throws Exception {
        consumer = new DefaultLitePullConsumer(request.get("group").getAsString(), Forms.hook(request));
        Forms.configure(consumer, name, request);
        consumer.setConsumeFromWhere(Forms.from(Forms.text(request, "start", "earliest")));
        consumer.setMessageModel(Forms.flag(request, "broadcast", false) ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        consumer.setAutoCommit(Forms.flag(request, "auto_commit", false));
        consumer.setPullBatchSize((int) Forms.number(request, "batch", 10));
        if (request.has("topics")) {
            for (Map.Entry<String, JsonElement> topic : request.getAsJsonObject("topics").entrySet()) {
                consumer.subscribe(topic.getKey(), Forms.selector(topic.getValue()));
            }
        }
        consumer.start();
        if (request.has("assign")) {
            List<MessageQueue> queues = new ArrayList<>();
            request.getAsJsonArray("assign").forEach(queue -> queues.add(Forms.queue(queue.getAsJsonObject())));
            consumer.assign(queues);
        }
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "poll":
                return Forms.forms(consumer.poll(Forms.number(request, "wait_ms", 1_000)));
            case "commit":
                consumer.commitSync();
                return true;
            case "seek":
                consumer.seek(Forms.queue(request), request.get("offset").getAsLong());
                return true;
            case "committed":
                return consumer.committed(Forms.queue(request));
            case "queues":
                List<Object> queues = new ArrayList<>();
                consumer.fetchMessageQueues(request.get("topic").getAsString())
                        .forEach(queue -> queues.add(Forms.form(queue)));
                return queues;
            default:
                throw new IllegalArgumentException(action);
        }
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
