import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * A Java push consumer: prints what it gets. A message whose property FAIL_TIMES is n fails its first n times; with
 * "reply" every message is answered.
 */
final class PushPeer implements Driver.Peer {
    private final String name;
    private final DefaultMQPushConsumer consumer;
    private final DefaultMQProducer replier;
    private final int retryLevel;

    PushPeer(String name, JsonObject request) throws Exception {
        this.name = name;
        retryLevel = (int) Forms.number(request, "retry_level", 1);
        String group = request.get("group").getAsString();
        consumer = new DefaultMQPushConsumer(
                group, Forms.hook(request), new AllocateMessageQueueAveragely(), Forms.flag(request, "trace", false), null);
        Forms.configure(consumer, name, request);
        consumer.setConsumeFromWhere(Forms.from(Forms.text(request, "start", "earliest")));
        if (request.has("timestamp")) {
            consumer.setConsumeTimestamp(request.get("timestamp").getAsString());
        }
        consumer.setMessageModel(Forms.flag(request, "broadcast", false) ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        consumer.setConsumeMessageBatchMaxSize((int) Forms.number(request, "batch", 1));
        consumer.setPullBatchSize((int) Forms.number(request, "pull_batch", 32));
        // Java counts the deliveries after the first one.
        consumer.setMaxReconsumeTimes(Math.max((int) Forms.number(request, "max_attempts", -1) - 1, -1));
        consumer.setPostSubscriptionWhenPull(Forms.flag(request, "post_subscription", false));
        int threads = (int) Forms.number(request, "threads", 4);
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        for (Map.Entry<String, JsonElement> topic : request.getAsJsonObject("topics").entrySet()) {
            consumer.subscribe(topic.getKey(), Forms.selector(topic.getValue()));
        }
        if (Forms.flag(request, "orderly", false)) {
            consumer.registerMessageListener(new Orderly());
        } else {
            consumer.registerMessageListener(new Concurrently());
        }
        replier = Forms.flag(request, "reply", false) ? new DefaultMQProducer(group + "_replies") : null;
        if (replier != null) {
            Forms.configure(replier, name + "-replies", request);
            replier.start();
        }
        consumer.start();
    }

    private final class Concurrently implements MessageListenerConcurrently {
        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            context.setDelayLevelWhenNextConsume(retryLevel);
            return taken(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
    }

    private final class Orderly implements MessageListenerOrderly {
        @Override
        public ConsumeOrderlyStatus consumeMessage(List<MessageExt> messages, ConsumeOrderlyContext context) {
            return taken(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }
    }

    private boolean taken(List<MessageExt> messages) {
        boolean failed = messages.stream().anyMatch(message -> {
            String times = message.getUserProperty("FAIL_TIMES");
            return times != null && message.getReconsumeTimes() < Integer.parseInt(times);
        });
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("on", name);
        form.put("event", failed ? "failed" : "messages");
        form.put("thread", Thread.currentThread().getName());
        form.put("messages", Forms.forms(messages));
        Driver.print(form);
        if (replier != null) {
            messages.forEach(this::reply);
        }
        return !failed;
    }

    private void reply(MessageExt message) {
        try {
            String body = "re:" + new String(message.getBody(), StandardCharsets.UTF_8);
            replier.send(MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8)));
        } catch (Exception failure) {
            Driver.print(Map.of("on", name, "event", "reply failed", "text", failure.toString()));
        }
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "queues":
                List<Object> queues = new ArrayList<>();
                consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()
                        .forEach(queue -> queues.add(Forms.form(queue)));
                return queues;
            case "client_id":
                return consumer.buildMQClientId();
            case "suspend":
                consumer.suspend();
                return true;
            case "resume":
                consumer.resume();
                return true;
            default:
                throw new IllegalArgumentException(action);
        }
    }

    @Override
    public void close() {
        consumer.shutdown();
        if (replier != null) {
            replier.shutdown();
        }
    }
}
