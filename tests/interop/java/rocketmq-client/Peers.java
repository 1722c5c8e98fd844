import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Clients made of what all releases have in common: producer, transaction, push; and pull where there is one. */
final class Peers {
    private Peers() {
    }

    static Driver.Peer open(String kind, String name, JsonObject request) throws Throwable {
        switch (kind) {
            case "producer":
                return new ProducerPeer(name, request, false);
            case "transaction":
                return new ProducerPeer(name, request, true);
            case "push":
                return new PushPeer(name, request);
            case "pull":
                return new PullPeer(name, request);
            default:
                throw new IllegalArgumentException("no client " + name + " and no kind " + kind);
        }
    }

    static void configure(ClientConfig config, String name, JsonObject from) {
        config.setNamesrvAddr(from.get("namesrv").getAsString());
        config.setInstanceName(name + "-" + System.nanoTime());
        config.setVipChannelEnabled(false);
        config.setHeartbeatBrokerInterval(1_000);
        config.setPollNameServerInterval(1_000);
    }

    static Message message(JsonObject from) {
        Message message = new Message(
                from.get("topic").getAsString(), Base64.getDecoder().decode(from.get("body").getAsString()));
        if (from.has("tag")) {
            message.setTags(from.get("tag").getAsString());
        }
        if (from.has("delay_level")) {
            message.setDelayTimeLevel(from.get("delay_level").getAsInt());
        }
        if (from.has("properties")) {
            // Not as a user's properties: those must not have the names of 5.x's timers.
            for (Map.Entry<String, JsonElement> item : from.getAsJsonObject("properties").entrySet()) {
                MessageAccessor.putProperty(message, item.getKey(), item.getValue().getAsString());
            }
        }
        return message;
    }

    static MessageSelector selector(JsonElement expression) {
        if (expression.isJsonObject()) {
            return MessageSelector.bySql(expression.getAsJsonObject().get("sql").getAsString());
        }
        return MessageSelector.byTag(expression.getAsString());
    }

    static List<Object> forms(Iterable<? extends MessageExt> messages) {
        List<Object> forms = new ArrayList<>();
        for (MessageExt message : messages) {
            Map<String, Object> form = new LinkedHashMap<>();
            form.put("topic", message.getTopic());
            form.put("body", Base64.getEncoder().encodeToString(message.getBody()));
            form.put("tag", message.getTags());
            form.put("keys", message.getKeys());
            form.put("properties", message.getProperties());
            form.put("id", message.getMsgId());
            form.put("queue", message.getQueueId());
            form.put("offset", message.getQueueOffset());
            form.put("attempt", message.getReconsumeTimes());
            form.put("born_ms", message.getBornTimestamp());
            form.put("stored_ms", message.getStoreTimestamp());
            forms.add(form);
        }
        return forms;
    }

    static Map<String, Object> form(SendResult result) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("status", result.getSendStatus().name());
        form.put("id", result.getMsgId());
        form.put("queue", result.getMessageQueue().getQueueId());
        form.put("offset", result.getQueueOffset());
        return form;
    }
}
