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
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;

/** A Java producer: one send, many in flight, or a steady load until told to stop. */
final class ProducerPeer implements Driver.Peer {
    private static final long RETRY_MS = 500;
    private static final int OVERFLOW = 419;
    private static final int LOAD_WINDOW = 200;

    private final TubeMultiSessionFactory factory;
    private final MessageProducer producer;
    private Load load;

    ProducerPeer(JsonObject request) throws Exception {
        factory = new TubeMultiSessionFactory(Forms.clientConfig(request));
        producer = factory.createProducer();
        long until = System.currentTimeMillis() + Forms.number(request, "wait_ms", 0);
        for (JsonElement topic : request.getAsJsonArray("topics")) {
            publish(producer, topic.getAsString(), until);
        }
    }

    /** A topic can be published only when its broker is writable, 41 s after its start. */
    static void publish(MessageProducer producer, String topic, long untilMs) throws Exception {
        while (true) {
            try {
                producer.publish(topic);
                return;
            } catch (Exception notYet) {
                if (System.currentTimeMillis() >= untilMs) {
                    throw notYet;
                }
                Thread.sleep(RETRY_MS);
            }
        }
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "send":
                return Forms.form(producer.sendMessage(Forms.message(request)));
            case "send_many":
                return sendMany(request);
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

    /** What a broker of Java's has no room for now, because its disk is slow, is sent again. */
    private Object sendMany(JsonObject request) throws Exception {
        List<Object> results = Collections.synchronizedList(new ArrayList<>());
        List<Message> again = Collections.synchronizedList(new ArrayList<>());
        int window = (int) Forms.number(request, "window", 100);
        Semaphore free = new Semaphore(window);
        for (JsonElement item : request.getAsJsonArray("messages")) {
            free.acquire();
            Message message = Forms.message(item.getAsJsonObject());
            producer.sendMessage(message, new MessageSentCallback() {
                @Override
                public void onMessageSent(MessageSentResult result) {
                    if (result.getErrCode() == OVERFLOW) {
                        again.add(message);
                    } else {
                        results.add(Forms.form(result));
                    }
                    free.release();
                }

                @Override
                public void onException(Throwable failure) {
                    results.add(Map.of("success", false, "code", 0, "text", failure.toString()));
                    free.release();
                }
            });
        }
        free.acquire(window);
        for (Message message : again) {
            MessageSentResult result = producer.sendMessage(message);
            while (result.getErrCode() == OVERFLOW) {
                Thread.sleep(RETRY_MS);
                result = producer.sendMessage(message);
            }
            results.add(Forms.form(result));
        }
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
                    producer.sendMessage(new Message(topic, body.getBytes(StandardCharsets.UTF_8)), new Outcome(body));
                    Thread.sleep(pauseUs / 1000, (int) (pauseUs % 1000) * 1000);
                } catch (InterruptedException stop) {
                    return;
                } catch (Exception failure) {
                    failed(failure.getClass().getSimpleName());
                    pause();
                }
            }
        }

        private void pause() {
            try {
                Thread.sleep(20);
            } catch (InterruptedException stop) {
                running = false;
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

        private final class Outcome implements MessageSentCallback {
            private final String body;

            Outcome(String body) {
                this.body = body;
            }

            @Override
            public void onMessageSent(MessageSentResult result) {
                if (result.isSuccess()) {
                    numbers.add(body);
                    acknowledged.incrementAndGet();
                    free.release();
                } else {
                    failed("code " + result.getErrCode());
                }
            }

            @Override
            public void onException(Throwable failure) {
                failed(failure.getClass().getSimpleName());
            }
        }
    }

    @Override
    public void close() throws Throwable {
        if (load != null) {
            load.running = false;
        }
        producer.shutdown();
        factory.shutdown();
    }
}
