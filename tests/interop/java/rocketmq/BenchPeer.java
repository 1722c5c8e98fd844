import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What the benchmarks measure of the Java client. Times are in nanoseconds of this process's clock. */
final class BenchPeer implements Driver.Peer {
    private final String name;
    private final JsonObject settings;
    private final DefaultMQProducer producer;

    BenchPeer(String name, JsonObject request) throws Exception {
        this.name = name;
        settings = request;
        producer = new DefaultMQProducer("bench");
        Forms.configure(producer, name, request);
        producer.setHeartbeatBrokerInterval(30_000);
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "publish":
                return publish(request);
            case "produce":
                return produce(request);
            case "sync":
                return sync(request, 1);
            case "batch":
                return sync(request, (int) Forms.number(request, "batch", 32));
            case "consume_pull":
                return pull(request);
            case "consume_push":
                return push(request);
            case "latency":
                return latency(request);
            default:
                throw new IllegalArgumentException(action);
        }
    }

    private static Map<String, Object> report(long count, long nanos) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("count", count);
        form.put("seconds", nanos / 1e9);
        return form;
    }

    /** Until the topic has a route. */
    private Object publish(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        long until = System.currentTimeMillis() + Forms.number(request, "wait_ms", 0);
        while (true) {
            try {
                return producer.fetchPublishMessageQueues(topic).size();
            } catch (Exception notYet) {
                if (System.currentTimeMillis() >= until) {
                    throw notYet;
                }
                Thread.sleep(100);
            }
        }
    }

    private Object produce(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        long count = request.get("count").getAsLong();
        int window = (int) Forms.number(request, "window", 500);
        byte[] body = new byte[(int) Forms.number(request, "size", 1024)];
        Arrays.fill(body, (byte) 'x');
        Semaphore free = new Semaphore(window);
        AtomicLong failed = new AtomicLong();
        SendCallback outcome = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failed.incrementAndGet();
                }
                free.release();
            }

            @Override
            public void onException(Throwable failure) {
                failed.incrementAndGet();
                free.release();
            }
        };
        long start = System.nanoTime();
        for (long i = 0; i < count; i++) {
            free.acquire();
            producer.send(new Message(topic, body), outcome);
        }
        free.acquire(window);
        Map<String, Object> form = report(count, System.nanoTime() - start);
        form.put("failed", failed.get());
        return form;
    }

    /** Threads that wait for each answer; a batch of one is a plain send. */
    private Object sync(JsonObject request, int batch) throws Exception {
        String topic = request.get("topic").getAsString();
        int threads = (int) Forms.number(request, "threads", 1);
        long each = request.get("count").getAsLong() / threads / batch;
        byte[] body = new byte[(int) Forms.number(request, "size", 1024)];
        Arrays.fill(body, (byte) 'x');
        AtomicLong failed = new AtomicLong();
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                for (long i = 0; i < each; i++) {
                    try {
                        SendResult result = batch == 1
                                ? producer.send(new Message(topic, body))
                                : producer.send(messages(topic, body, batch));
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            failed.incrementAndGet();
                        }
                    } catch (Exception failure) {
                        failed.incrementAndGet();
                    }
                }
                done.countDown();
            }).start();
        }
        done.await();
        Map<String, Object> form = report(each * threads * batch, System.nanoTime() - start);
        form.put("failed", failed.get());
        return form;
    }

    private static List<Message> messages(String topic, byte[] body, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            messages.add(new Message(topic, body));
        }
        return messages;
    }

    /** From the first message to the last: the join of the group is not what is measured. */
    private Object pull(JsonObject request) throws Throwable {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.get("group").getAsString());
        Forms.configure(consumer, name + "-pull", settings);
        consumer.setConsumeFromWhere(Forms.from("earliest"));
        consumer.setPullBatchSize((int) Forms.number(request, "per_pull", 32));
        consumer.setPullThresholdForAll(100_000);
        consumer.setPullThresholdForQueue(10_000);
        consumer.subscribe(request.get("topic").getAsString(), "*");
        consumer.start();
        long wanted = request.get("count").getAsLong();
        long got = 0;
        long bytes = 0;
        long start = 0;
        long end = 0;
        long until = System.currentTimeMillis() + Forms.number(request, "wait_ms", 60_000);
        while (got < wanted && System.currentTimeMillis() < until) {
            long before = System.nanoTime();
            List<MessageExt> messages = consumer.poll(1_000);
            if (got == 0 && !messages.isEmpty()) {
                start = before;
            }
            for (MessageExt message : messages) {
                got++;
                bytes += message.getBody().length;
            }
            end = System.nanoTime();
        }
        consumer.shutdown();
        Map<String, Object> form = report(got, end - start);
        form.put("bytes", bytes);
        return form;
    }

    private Object push(JsonObject request) throws Throwable {
        AtomicLong got = new AtomicLong();
        AtomicLong start = new AtomicLong();
        AtomicLong end = new AtomicLong();
        long wanted = request.get("count").getAsLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = listen(request, "earliest", (messages, context) -> {
            start.compareAndSet(0, System.nanoTime());
            if (got.addAndGet(messages.size()) >= wanted) {
                end.compareAndSet(0, System.nanoTime());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        done.await(Forms.number(request, "wait_ms", 60_000), TimeUnit.MILLISECONDS);
        consumer.shutdown();
        return report(got.get(), Math.max(end.get(), 1) - start.get());
    }

    private DefaultMQPushConsumer listen(JsonObject request, String start, MessageListenerConcurrently listener)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.get("group").getAsString());
        Forms.configure(consumer, name + "-push", settings);
        consumer.setConsumeFromWhere(Forms.from(start));
        int perPull = (int) Forms.number(request, "per_pull", 32);
        consumer.setPullBatchSize(perPull);
        consumer.setConsumeMessageBatchMaxSize(perPull);
        consumer.setPullThresholdForQueue(Math.max(1_000, 10 * perPull));
        consumer.setConsumeConcurrentlyMaxSpan(Math.max(2_000, 20 * perPull));
        consumer.subscribe(request.get("topic").getAsString(), "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    /** A producer at a steady rate and a push consumer in one process: from the call of send to the listener. */
    private Object latency(JsonObject request) throws Throwable {
        String topic = request.get("topic").getAsString();
        int count = (int) request.get("count").getAsLong();
        int warm = (int) Forms.number(request, "warm", 1000);
        long gap = 1_000_000_000L / Forms.number(request, "rate", 1000);
        int size = (int) Forms.number(request, "size", 100);
        long[] taken = new long[count];
        AtomicLong got = new AtomicLong();
        CountDownLatch joined = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(1);
        long run = System.nanoTime(); // the topic holds what other runs sent
        DefaultMQPushConsumer consumer = listen(request, "latest", (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer head = ByteBuffer.wrap(message.getBody());
                if (head.getLong() != run) {
                    continue;
                }
                long number = head.getLong();
                if (number < 0) {
                    joined.countDown();
                } else if (number >= warm && number < warm + count) {
                    taken[(int) number - warm] = now - head.getLong();
                    if (got.incrementAndGet() == count) {
                        done.countDown();
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int i = 0; i < 600 && !joined.await(100, TimeUnit.MILLISECONDS); i++) {
            producer.send(new Message(topic, body(run, -1, size)));
        }
        long next = System.nanoTime();
        for (int i = 0; i < warm + count; i++, next += gap) {
            for (long wait = next - System.nanoTime(); wait > 0; wait = next - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            producer.send(new Message(topic, body(run, i, size)), IGNORED);
        }
        done.await(20, TimeUnit.SECONDS);
        consumer.shutdown();
        Arrays.sort(taken);
        Map<String, Object> form = report(got.get(), 0);
        form.put("p50_ms", taken[count / 2] / 1e6);
        form.put("p99_ms", taken[count * 99 / 100] / 1e6);
        form.put("max_ms", taken[count - 1] / 1e6);
        return form;
    }

    private static final SendCallback IGNORED = new SendCallback() {
        @Override
        public void onSuccess(SendResult result) {
            // The consumer counts.
        }

        @Override
        public void onException(Throwable failure) {
            // The consumer counts.
        }
    };

    private static byte[] body(long run, long number, int size) {
        return ByteBuffer.allocate(size).putLong(run).putLong(number).putLong(System.nanoTime()).array();
    }

    @Override
    public void close() {
        producer.shutdown();
    }
}
