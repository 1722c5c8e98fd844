import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A Java push consumer: prints what it gets. A message whose property FAIL_TIMES is n fails its first n times. */
final class PushPeer implements Driver.Peer {
    private final String name;
    private final DefaultMQPushConsumer consumer;

    PushPeer(String name, JsonObject request) throws Exception {
        this.name = name;
        consumer = new DefaultMQPushConsumer(request.get("group").getAsString());
        Peers.configure(consumer, name, request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        for (Map.Entry<String, JsonElement> topic : request.getAsJsonObject("topics").entrySet()) {
            consumer.subscribe(topic.getKey(), Peers.selector(topic.getValue()));
        }
        if (request.has("orderly") && request.get("orderly").getAsBoolean()) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> taken(messages)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return taken(messages)
                        ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
    }

    private boolean taken(List<MessageExt> messages) {
        boolean failed = messages.stream().anyMatch(message -> {
            String times = message.getUserProperty("FAIL_TIMES");
            return times != null && message.getReconsumeTimes() < Integer.parseInt(times);
        });
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("on", name);
        form.put("event", failed ? "failed" : "messages");
        form.put("messages", Peers.forms(messages));
        Driver.print(form);
        return !failed;
    }

    @Override
    public Object act(String action, JsonObject request) {
        throw new IllegalArgumentException(action);
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
