import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sorts and allocates as Java's consumers do. A line in is a JSON object with strategy, queues, clients
 * and me; a line out is the queues of that client. A room is the first letter of a broker or client.
 */
public final class AllocatePeer {
    private static final Map<String, AllocateMessageQueueStrategy> STRATEGIES = new HashMap<>();

    static {
        STRATEGIES.put("average", new AllocateMessageQueueAveragely());
        STRATEGIES.put("by_circle", new AllocateMessageQueueAveragelyByCircle());
        STRATEGIES.put("consistent_hash", new AllocateMessageQueueConsistentHash());
        AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
        rooms.setConsumeridcs(new HashSet<>(Arrays.asList("x", "y")));
        STRATEGIES.put("machine_room", rooms);
        STRATEGIES.put("nearby", new AllocateMachineRoomNearby(
            new AllocateMessageQueueAveragely(), new FirstLetter()));
    }

    private AllocatePeer() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(JsonParser.parseString(line).getAsJsonObject()));
        }
        out.flush();
    }

    private static JsonArray answer(JsonObject asked) {
        List<MessageQueue> queues = new ArrayList<>();
        for (JsonElement queue : asked.getAsJsonArray("queues")) {
            JsonArray parts = queue.getAsJsonArray();
            queues.add(new MessageQueue("orders", parts.get(0).getAsString(), parts.get(1).getAsInt()));
        }
        List<String> clients = new ArrayList<>();
        asked.getAsJsonArray("clients").forEach(client -> clients.add(client.getAsString()));
        Collections.sort(queues);
        Collections.sort(clients);
        JsonArray mine = new JsonArray();
        AllocateMessageQueueStrategy strategy = STRATEGIES.get(asked.get("strategy").getAsString());
        for (MessageQueue queue : strategy.allocate("g", asked.get("me").getAsString(), queues, clients)) {
            JsonArray parts = new JsonArray();
            parts.add(queue.getBrokerName());
            parts.add(queue.getQueueId());
            mine.add(parts);
        }
        return mine;
    }

    private static final class FirstLetter implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().substring(0, 1);
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.substring(0, 1);
        }
    }
}
