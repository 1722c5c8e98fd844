import com.google.gson.JsonObject;

/** The kinds of RocketMQ clients. */
final class Peers {
    private Peers() {
    }

    static Driver.Peer open(String kind, String name, JsonObject request) throws Throwable {
        switch (kind) {
            case "producer":
                return new ProducerPeer(name, request);
            case "transaction":
                return new TransactionPeer(name, request);
            case "push":
                return new PushPeer(name, request);
            case "pull":
                return new PullPeer(name, request);
            case "bench":
                return new BenchPeer(name, request);
            case "admin":
                return new AdminPeer(request);
            default:
                throw new IllegalArgumentException("no client " + name + " and no kind " + kind);
        }
    }
}
