import com.google.gson.JsonObject;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A transactional producer: properties LOCAL and CHECK of a message say how its transaction goes. */
final class TransactionPeer implements Driver.Peer {
    private final String name;
    private final TransactionMQProducer producer;

    TransactionPeer(String name, JsonObject request) throws Exception {
        this.name = name;
        producer = new TransactionMQProducer(null, request.get("group").getAsString(), Forms.hook(request));
        Forms.configure(producer, name, request);
        producer.setTransactionListener(new Listener());
        producer.start();
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message, "LOCAL");
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            LocalTransactionState state = state(message, "CHECK");
            Map<String, Object> form = new LinkedHashMap<>();
            form.put("on", name);
            form.put("event", "checked");
            form.put("state", state.name());
            form.put("message", Forms.form(message));
            Driver.print(form);
            return state;
        }

        private LocalTransactionState state(Message message, String property) {
            switch (String.valueOf(message.getProperty(property))) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        if (!action.equals("send")) {
            throw new IllegalArgumentException(action);
        }
        TransactionSendResult result = producer.sendMessageInTransaction(Forms.message(request), null);
        Map<String, Object> form = Forms.form(result);
        form.put("local", result.getLocalTransactionState().name());
        return form;
    }

    @Override
    public void close() {
        producer.shutdown();
    }
}
