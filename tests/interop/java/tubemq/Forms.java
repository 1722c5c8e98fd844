import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.config.TubeClientConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumePosition;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;

/** The JSON forms of what clients take and give. */
@SuppressWarnings("deprecation") // only the deprecated constructors take a local address
final class Forms {
    /** The client refuses 127.0.0.1 as its own address. */
    static final String LOCAL = "127.0.0.2";

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

    static TubeClientConfig clientConfig(JsonObject from) throws Exception {
        return common(new TubeClientConfig(LOCAL, from.get("master").getAsString()), from);
    }

    private static <C extends TubeClientConfig> C common(C config, JsonObject from) {
        config.setRpcTimeoutMs(number(from, "timeout_ms", config.getRpcTimeoutMs()));
        config.setHeartbeatPeriodMs(number(from, "heartbeat_ms", config.getHeartbeatPeriodMs()));
        config.setUnAvailableFbdDurationMs(number(from, "avoid_ms", config.getUnAvailableFbdDurationMs()));
        config.setLinkStatsForbiddenDurationMs(
                number(from, "avoid_ms", config.getLinkStatsForbiddenDurationMs()));
        if (from.has("user")) {
            config.setAuthenticInfo(true, text(from, "user", ""), text(from, "password", ""));
        }
        return config;
    }

    static ConsumerConfig consumerConfig(JsonObject from) throws Exception {
        ConsumerConfig config = common(
                new ConsumerConfig(LOCAL, from.get("master").getAsString(), from.get("group").getAsString()), from);
        switch (text(from, "start", "earliest")) {
            case "earliest":
                config.setConsumePosition(ConsumePosition.CONSUMER_FROM_FIRST_OFFSET);
                break;
            case "latest":
                config.setConsumePosition(ConsumePosition.CONSUMER_FROM_LATEST_OFFSET);
                break;
            default:
                config.setConsumePosition(ConsumePosition.CONSUMER_FROM_MAX_OFFSET_ALWAYS);
        }
        config.setPullConsumeReadyWaitPeriodMs(number(from, "ready_ms", 1000));
        config.setMsgNotFoundWaitPeriodMs(number(from, "not_found_ms", config.getMsgNotFoundWaitPeriodMs()));
        config.setPullConfirmInLocal(flag(from, "local", false));
        config.setPushListenerThrowedRollBack(flag(from, "roll_back_thrown", false));
        config.setPushFetchThreadCnt((int) number(from, "threads", config.getPushFetchThreadCnt()));
        return config;
    }

    /** Topic to its filters; null where there are none. */
    static Map<String, TreeSet<String>> topics(JsonObject from) {
        Map<String, TreeSet<String>> topics = new LinkedHashMap<>();
        for (Map.Entry<String, JsonElement> entry : from.getAsJsonObject("topics").entrySet()) {
            TreeSet<String> filters = new TreeSet<>();
            entry.getValue().getAsJsonArray().forEach(item -> filters.add(item.getAsString()));
            topics.put(entry.getKey(), filters.isEmpty() ? null : filters);
        }
        return topics;
    }

    static Message message(JsonObject from) {
        Message message = new Message(
                from.get("topic").getAsString(), Base64.getDecoder().decode(from.get("body").getAsString()));
        String tag = text(from, "tag", null);
        String time = text(from, "time", null);
        if (tag != null || time != null) {
            message.putSystemHeader(tag, time);
        }
        if (from.has("properties")) {
            from.getAsJsonObject("properties").entrySet()
                    .forEach(item -> message.setAttrKeyVal(item.getKey(), item.getValue().getAsString()));
        }
        return message;
    }

    static Map<String, Object> form(Message message) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("topic", message.getTopic());
        form.put("body", Base64.getEncoder().encodeToString(message.getData()));
        form.put("tag", message.getMsgType());
        form.put("time", message.getMsgTime());
        form.put("attributes", message.getAttribute());
        form.put("id", Long.toString(message.getIndexId()));
        return form;
    }

    static List<Object> forms(List<Message> messages) {
        List<Object> forms = new ArrayList<>();
        if (messages != null) {
            messages.forEach(message -> forms.add(form(message)));
        }
        return forms;
    }

    static Map<String, Object> form(MessageSentResult result) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("success", result.isSuccess());
        form.put("code", result.getErrCode());
        form.put("text", result.getErrMsg());
        form.put("id", Long.toString(result.getMessageId()));
        form.put("partition", result.getPartition() == null ? null : result.getPartition().getPartitionKey());
        form.put("offset", result.getAppendOffset());
        form.put("time_ms", result.getAppendTime());
        return form;
    }
}
