import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** The JSON forms of what clients take and give. */
final class Forms {
    private Forms() {
    }

    static String text(JsonObject from, String name, String otherwise) {
        JsonElement value = from.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsString();
    }

    static long number(JsonObject from, String name, long otherwise) {
        JsonElement value = from.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsLong();
    }

    static boolean flag(JsonObject from, String name, boolean otherwise) {
        JsonElement value = from.get(name);
        return value == null || value.isJsonNull() ? otherwise : value.getAsBoolean();
    }

    /** What signs the requests: null without access_key. */
    static RPCHook hook(JsonObject from) {
        String key = text(from, "access_key", null);
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, from.get("secret_key").getAsString()));
    }

    /** Every client is one of its own, whatever else is in this JVM. */
    static void configure(ClientConfig config, String name, JsonObject from) {
        config.setNamesrvAddr(from.get("namesrv").getAsString());
        config.setInstanceName(text(from, "instance", name + "-" + System.nanoTime()));
        config.setUseTLS(flag(from, "tls", false));
        config.setVipChannelEnabled(flag(from, "vip", false));
        config.setHeartbeatBrokerInterval((int) number(from, "heartbeat_ms", 1_000));
        config.setPollNameServerInterval((int) number(from, "poll_ms", 1_000));
        config.setPersistConsumerOffsetInterval((int) number(from, "persist_ms", 500));
    }

    static MessageSelector selector(JsonElement expression) {
        if (expression.isJsonObject()) {
            return MessageSelector.bySql(expression.getAsJsonObject().get("sql").getAsString());
        }
        return MessageSelector.byTag(expression.getAsString());
    }

    static ConsumeFromWhere from(String start) {
        switch (start) {
            case "earliest":
                return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
            case "latest":
                return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
            default:
                return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
        }
    }

    static Message message(JsonObject from) {
        Message message = new Message(
                from.get("topic").getAsString(), Base64.getDecoder().decode(from.get("body").getAsString()));
        if (from.has("tag")) {
            message.setTags(from.get("tag").getAsString());
        }
        if (from.has("keys")) {
            List<String> keys = new ArrayList<>();
            from.getAsJsonArray("keys").forEach(key -> keys.add(key.getAsString()));
            message.setKeys(keys);
        }
        message.setFlag((int) number(from, "flag", 0));
        message.setWaitStoreMsgOK(flag(from, "wait", true));
        if (from.has("delay_level")) {
            message.setDelayTimeLevel(from.get("delay_level").getAsInt());
        }
        if (from.has("properties")) {
            from.getAsJsonObject("properties").entrySet()
                    .forEach(item -> message.putUserProperty(item.getKey(), item.getValue().getAsString()));
        }
        return message;
    }

    static MessageQueue queue(JsonObject from) {
        return new MessageQueue(
                from.get("topic").getAsString(), from.get("broker").getAsString(), from.get("queue").getAsInt());
    }

    static Map<String, Object> form(MessageQueue queue) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("topic", queue.getTopic());
        form.put("broker", queue.getBrokerName());
        form.put("queue", queue.getQueueId());
        return form;
    }

    static Map<String, Object> form(MessageExt message) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("topic", message.getTopic());
        byte[] body = message.getBody();
        form.put("body", body == null ? null : Base64.getEncoder().encodeToString(body));
        form.put("tag", message.getTags());
        form.put("keys", message.getKeys());
        form.put("properties", message.getProperties());
        form.put("id", message.getMsgId());
        form.put("offset_id", message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        form.put("broker", message.getBrokerName());
        form.put("queue", message.getQueueId());
        form.put("offset", message.getQueueOffset());
        form.put("log_offset", message.getCommitLogOffset());
        form.put("attempt", message.getReconsumeTimes());
        form.put("flag", message.getFlag());
        form.put("sys_flag", message.getSysFlag());
        form.put("born_ms", message.getBornTimestamp());
        form.put("stored_ms", message.getStoreTimestamp());
        form.put("born_host", String.valueOf(message.getBornHost()));
        form.put("store_host", String.valueOf(message.getStoreHost()));
        form.put("prepared_offset", message.getPreparedTransactionOffset());
        form.put("transaction", message.getTransactionId());
        form.put("crc", message.getBodyCRC());
        return form;
    }

    static List<Object> forms(Iterable<? extends MessageExt> messages) {
        List<Object> forms = new ArrayList<>();
        messages.forEach(message -> forms.add(form(message)));
        return forms;
    }

    static Map<String, Object> form(SendResult result) {
        Map<String, Object> form = form(result.getMessageQueue());
        form.put("status", result.getSendStatus().name());
        form.put("id", result.getMsgId());
        form.put("offset_id", result.getOffsetMsgId());
        form.put("offset", result.getQueueOffset());
        form.put("transaction", result.getTransactionId());
        form.put("region", result.getRegionId());
        form.put("trace", result.isTraceOn());
        return form;
    }
}
