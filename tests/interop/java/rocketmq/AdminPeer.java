import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The Java tools: runs a command of mqadmin in this JVM and gives what it printed. */
final class AdminPeer implements Driver.Peer {
    private static final Object ONE_AT_A_TIME = new Object();

    private final String namesrv;
    private final RPCHook hook;

    AdminPeer(JsonObject request) {
        namesrv = request.get("namesrv").getAsString();
        hook = Forms.hook(request);
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        if (!action.equals("run")) {
            throw new IllegalArgumentException(action);
        }
        List<String> arguments = new ArrayList<>();
        request.getAsJsonArray("arguments").forEach(argument -> arguments.add(argument.getAsString()));
        synchronized (ONE_AT_A_TIME) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream out = System.out;
            PrintStream err = System.err;
            PrintStream into = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(into);
            System.setErr(into);
            System.setProperty("rocketmq.namesrv.addr", namesrv);
            try {
                MQAdminStartup.main0(arguments.toArray(new String[0]), hook);
            } finally {
                System.setOut(out);
                System.setErr(err);
                System.clearProperty("rocketmq.namesrv.addr");
            }
            return said.toString(StandardCharsets.UTF_8);
        }
    }

    @Override
    public void close() {
        // Every command closes what it opened.
    }
}
