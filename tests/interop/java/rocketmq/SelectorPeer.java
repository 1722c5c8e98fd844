import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Compiles and evaluates selectors as the broker does. A line in is an expression and any number of
 * property texts, in base64 with blanks between them; a line out is its results, or what is wrong.
 */
public final class SelectorPeer {
    private SelectorPeer() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
        out.flush();
    }

    private static String answer(String[] parts) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text(parts[0]));
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return "error " + cause.getClass().getName() + ": " + firstLine(cause.getMessage());
        }
        StringBuilder results = new StringBuilder("ok");
        for (int place = 1; place < parts.length; place++) {
            results.append(' ').append(evaluate(expression, text(parts[place])));
        }
        return results.toString();
    }

    private static String evaluate(Expression expression, String properties) {
        final Map<String, String> held = MessageDecoder.string2messageProperties(properties);
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return held.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return new HashMap<String, Object>(held);
                }
            }));
        } catch (Exception error) {
            return "exception";
        }
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }

    private static String firstLine(String message) {
        return String.valueOf(message).split("\r?\n", 2)[0];
    }
}
