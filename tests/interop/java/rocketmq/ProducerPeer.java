import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** A Java producer: sends of every form, requests, and a steady load until told to stop. */
final class ProducerPeer implements Driver.Peer {
    private static final int LOAD_WINDOW = 200;

    private final DefaultMQProducer producer;
    private Load load;

    ProducerPeer(String name, JsonObject request) throws Exception {
        String group = Forms.text(request, "group", "interop_producers");
        producer = new DefaultMQProducer(group, Forms.hook(request), Forms.flag(request, "trace", false), null);
        Forms.configure(producer, name, request);
        producer.setSendLatencyFaultEnable(Forms.flag(request, "latency", false));
        producer.setSendMsgTimeout((int) Forms.number(request, "timeout_ms", 5_000));
        producer.setCompressMsgBodyOverHowmuch((int) Forms.number(request, "compress_over", 4_096));
        producer.setRetryTimesWhenSendAsyncFailed((int) Forms.number(request, "retries", 2));
        producer.start();
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "send":
                return Forms.form(send(request));
            case "send_many":
                return sendMany(request);
            case "oneway":
                producer.sendOneway(Forms.message(request));
                return true;
            case "batch":
                List<Message> batch = new ArrayList<>();
                request.getAsJsonArray("messages").forEach(item -> batch.add(Forms.message(item.getAsJsonObject())));
                return Forms.form(producer.send(batch));
            case "request":
                return Forms.form((MessageExt) producer.request(
                        Forms.message(request), Forms.number(request, "timeout_ms", 5_000)));
            case "queues":
                List<Object> queues = new ArrayList<>();
                producer.fetchPublishMessageQueues(request.get("topic").getAsString())
                        .forEach(queue -> queues.add(Forms.form(queue)));
                return queues;
            case "load":
                load = new Load(request.get("topic").getAsString(), Forms.number(request, "pause_us", 1000));
                load.start();
                return true;
            case "acknowledged":
                return load.acknowledged.get();
            case "stop_load":
                return load.stopped();
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private SendResult send(JsonObject request) throws Exception {
        Message message = Forms.message(request);
        if (request.has("order_by")) {
            return producer.send(message, new SelectMessageQueueByHash(), request.get("order_by").getAsString());
        }
        if (request.has("queue")) {
            return producer.send(message, Forms.queue(request));
        }
        return producer.send(message);
    }

    private Object sendMany(JsonObject request) throws Exception {
        List<Object> results = Collections.synchronizedList(new ArrayList<>());
        int window = (int) Forms.number(request, "window", 100);
        Semaphore free = new Semaphore(window);
        for (JsonElement item : request.getAsJsonArray("messages")) {
            free.acquire();
            producer.send(Forms.message(item.getAsJsonObject()), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.add(Forms.form(result));
                    free.release();
                }

                @Override
                public void onException(Throwable failure) {
                    results.add(Map.of("status", "FAILED", "text", failure.toString()));
                    free.release();
                }
            });
        }
        free.acquire(window);
        return new ArrayList<>(results);
    }

    /** Sends numbered messages and remembers which numbers were acknowledged. */
    private final class Load extends Thread {
        final AtomicLong acknowledged = new AtomicLong();
        private final String topic;
        private final long pauseUs;
        private final Semaphore free = new Semaphore(LOAD_WINDOW);
        private final List<String> numbers = Collections.synchronizedList(new ArrayList<>());
        private final Map<String, Integer> failures = Collections.synchronizedMap(new TreeMap<>());
        private volatile boolean running = true;

        Load(String topic, long pauseUs) {
            super("load");
            this.topic = topic;
            this.pauseUs = pauseUs;
        }

        @Override
        public void run() {
            for (long number = 0; running; number++) {
                String body = "java-" + number;
                try {
                    free.acquire();
                    producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)), new Outcome(body));
                    Thread.sleep(pauseUs / 1000, (int) (pauseUs % 1000) * 1000);
                } catch (InterruptedException stop) {
                    return;
                } catch (Exception failure) {
                    failed(failure.getClass().getSimpleName());
                }
            }
        }

        private void failed(String reason) {
            failures.merge(reason, 1, Integer::sum);
            free.release();
        }

        Object stopped() throws InterruptedException {
            running = false;
            join();
            free.acquire(LOAD_WINDOW);
            Map<String, Object> form = new LinkedHashMap<>();
            form.put("acknowledged", new ArrayList<>(numbers));
            form.put("failures", new TreeMap<>(failures));
            return form;
        }

        private final class Outcome implements SendCallback {
            private final String body;

            Outcome(String body) {
                this.body = body;
            }

            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    numbers.add(body);
                    acknowledged.incrementAndGet();
                    free.release();
                } else {
                    failed(result.getSendStatus().name());
                }
            }

            @Override
            public void onException(Throwable failure) {
                failed(failure.getClass().getSimpleName());
            }
        }
    }

    @Override
    public void close() {
        if (load != null) {
            load.running = false;
        }
        producer.shutdown();
    }
}
