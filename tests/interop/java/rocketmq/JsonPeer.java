import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Reads bodies as Java's brokers and clients do. A line in is the name of a class and JSON in base64;
 * a line out is what was read, written again as JSON in base64, or what is wrong.
 */
public final class JsonPeer {
    private JsonPeer() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ")));
        }
        out.flush();
    }

    private static String answer(String[] parts) {
        try {
            byte[] body = Base64.getDecoder().decode(parts[1]);
            Object found = RemotingSerializable.decode(body, Class.forName(parts[0]));
            byte[] again = RemotingSerializable.toJson(found, false).getBytes(StandardCharsets.UTF_8);
            return "ok " + Base64.getEncoder().encodeToString(again);
        } catch (Throwable error) {
            return "error " + error.getClass().getName() + ": " + String.valueOf(error.getMessage()).split("\r?\n", 2)[0];
        }
    }
}
