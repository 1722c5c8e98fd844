import com.google.gson.JsonObject;
import java.lang.reflect.Method;
import java.util.List;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A Java lite pull consumer, by reflection: releases before 4.6 have none. */
final class PullPeer implements Driver.Peer {
    private static final String CLASS = "org.apache.rocketmq.client.consumer.DefaultLitePullConsumer";

    private final Object consumer;

    PullPeer(String name, JsonObject request) throws Exception {
        Class<?> kind = Class.forName(CLASS);
        consumer = kind.getConstructor(String.class).newInstance(request.get("group").getAsString());
        Peers.configure((ClientConfig) consumer, name, request);
        kind.getMethod("setConsumeFromWhere", ConsumeFromWhere.class)
                .invoke(consumer, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        Method subscribe = kind.getMethod("subscribe", String.class, String.class);
        for (String topic : request.getAsJsonObject("topics").keySet()) {
            subscribe.invoke(consumer, topic, "*");
        }
        kind.getMethod("start").invoke(consumer);
    }

    @Override
    @SuppressWarnings("unchecked")
    public Object act(String action, JsonObject request) throws Throwable {
        if (!action.equals("poll")) {
            throw new IllegalArgumentException(action);
        }
        Method poll = consumer.getClass().getMethod("poll", long.class);
        return Peers.forms((List<MessageExt>) poll.invoke(consumer, 1_000L));
    }

    @Override
    public void close() throws Throwable {
        consumer.getClass().getMethod("shutdown").invoke(consumer);
    }
}
