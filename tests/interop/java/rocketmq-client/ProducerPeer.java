import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A Java producer; of transactions, whose messages say in LOCAL and CHECK how they end. */
final class ProducerPeer implements Driver.Peer {
    private final DefaultMQProducer producer;

    ProducerPeer(String name, JsonObject request, boolean transactional) throws Exception {
        String group = request.get("group").getAsString();
        if (transactional) {
            TransactionMQProducer made = new TransactionMQProducer(group);
            made.setTransactionListener(new Listener());
            producer = made;
        } else {
            producer = new DefaultMQProducer(group);
        }
        Peers.configure(producer, name, request);
        producer.setSendMsgTimeout(5_000);
        producer.start();
    }

    private static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message, "LOCAL");
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return state(message, "CHECK");
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
        switch (action) {
            case "send":
                Message message = Peers.message(request);
                return Peers.form(producer instanceof TransactionMQProducer
                        ? ((TransactionMQProducer) producer).sendMessageInTransaction(message, null)
                        : producer.send(message));
            case "batch":
                List<Message> batch = new ArrayList<>();
                request.getAsJsonArray("messages").forEach(item -> batch.add(Peers.message(item.getAsJsonObject())));
                return Peers.form(producer.send(batch));
            default:
                throw new IllegalArgumentException(action);
        }
    }

    @Override
    public void close() {
        producer.shutdown();
    }
}
