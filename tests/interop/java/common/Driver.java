import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * One JVM that holds many clients and does what JSON lines on stdin say. {@code Peers} makes them.
 *
 * <p>A request names a client ("on"), an action ("do") and a number ("call"); its answer repeats the number with
 * "ok" or "error". Clients also write lines of their own, with "on" and "event". The requests of one
 * client run one after another, those of different clients at the same time. The end of stdin ends the process.
 */
public final class Driver {
    /** Something that takes requests. */
    interface Peer {
        Object act(String action, JsonObject request) throws Throwable;

        void close() throws Throwable;
    }

    private static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final PrintStream OUT = System.out;
    private static final Map<String, Peer> PEERS = new ConcurrentHashMap<>();
    private static final Map<String, ExecutorService> TURNS = new ConcurrentHashMap<>();

    private Driver() {
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err); // whatever a library prints must not stand between the JSON lines
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        print(Map.of("event", "ready"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            String name = request.get("on").getAsString();
            TURNS.computeIfAbsent(name, key -> Executors.newSingleThreadExecutor()).execute(() -> answer(name, request));
        }
        Runtime.getRuntime().halt(0);
    }

    /** Writes one line; value is what Gson can write. */
    static void print(Object value) {
        byte[] line = (GSON.toJson(value) + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(line, 0, line.length);
            OUT.flush();
        }
    }

    private static void answer(String name, JsonObject request) {
        JsonObject answer = new JsonObject();
        answer.add("call", request.get("call"));
        try {
            answer.add("ok", GSON.toJsonTree(act(name, request)));
        } catch (Throwable failure) {
            answer.addProperty("error", failure.toString());
        }
        print(answer);
    }

    private static Object act(String name, JsonObject request) throws Throwable {
        String action = request.get("do").getAsString();
        switch (action) {
            case "close":
                Peer gone = PEERS.remove(name);
                if (gone != null) {
                    gone.close();
                }
                ExecutorService turns = TURNS.remove(name);
                if (turns != null) {
                    turns.shutdown();
                }
                return name;
            default:
                Peer peer = PEERS.get(name);
                if (peer != null) {
                    return peer.act(action, request);
                }
                PEERS.put(name, Peers.open(action, name, request));
                return name;
        }
    }
}
