import com.google.gson.JsonObject;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.inlong.tubemq.client.config.ConsumerConfig;
import org.apache.inlong.tubemq.client.consumer.ConsumerResult;
import org.apache.inlong.tubemq.client.consumer.MessageListener;
import org.apache.inlong.tubemq.client.consumer.PullMessageConsumer;
import org.apache.inlong.tubemq.client.consumer.PushMessageConsumer;
import org.apache.inlong.tubemq.client.common.PeerInfo;
import org.apache.inlong.tubemq.client.factory.TubeMultiSessionFactory;
import org.apache.inlong.tubemq.client.producer.MessageProducer;
import org.apache.inlong.tubemq.client.producer.MessageSentCallback;
import org.apache.inlong.tubemq.client.producer.MessageSentResult;
import org.apache.inlong.tubemq.corebase.Message;

/** What the benchmarks measure of the Java client. Times are in nanoseconds of this process's clock. */
final class BenchPeer implements Driver.Peer {
    private final JsonObject settings;
    private final TubeMultiSessionFactory factory;
    private MessageProducer producer;

    BenchPeer(JsonObject request) throws Exception {
        settings = request;
        factory = new TubeMultiSessionFactory(Forms.clientConfig(request));
    }

    @Override
    public Object act(String action, JsonObject request) throws Throwable {
        switch (action) {
            case "publish":
                if (producer == null) {
                    producer = factory.createProducer();
                }
                ProducerPeer.publish(producer, request.get("topic").getAsString(),
                        System.currentTimeMillis() + Forms.number(request, "wait_ms", 0));
                return true;
            case "produce":
                return produce(request);
            case "sync":
                return sync(request);
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

    private Map<String, Object> report(long count, long nanos) {
        Map<String, Object> form = new LinkedHashMap<>();
        form.put("count", count);
        form.put("seconds", nanos / 1e9);
        return form;
    }

    private Object produce(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        long count = request.get("count").getAsLong();
        int window = (int) Forms.number(request, "window", 500);
        byte[] body = new byte[(int) Forms.number(request, "size", 1024)];
        Arrays.fill(body, (byte) 'x');
        Semaphore free = new Semaphore(window);
        AtomicLong failed = new AtomicLong();
        MessageSentCallback outcome = new MessageSentCallback() {
            @Override
            public void onMessageSent(MessageSentResult result) {
                if (!result.isSuccess()) {
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
            producer.sendMessage(new Message(topic, body), outcome);
        }
        free.acquire(window);
        Map<String, Object> form = report(count, System.nanoTime() - start);
        form.put("failed", failed.get());
        return form;
    }

    private Object sync(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        int threads = (int) Forms.number(request, "threads", 1);
        long each = request.get("count").getAsLong() / threads;
        byte[] body = new byte[(int) Forms.number(request, "size", 1024)];
        Arrays.fill(body, (byte) 'x');
        AtomicLong failed = new AtomicLong();
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                for (long i = 0; i < each; i++) {
                    try {
                        if (!producer.sendMessage(new Message(topic, body)).isSuccess()) {
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
        Map<String, Object> form = report(each * threads, System.nanoTime() - start);
        form.put("failed", failed.get());
        return form;
    }

    /** From the first message to the last: the join of the group is not what is measured. */
    private Object pull(JsonObject request) throws Throwable {
        ConsumerConfig config = Forms.consumerConfig(merged(request));
        PullMessageConsumer consumer = factory.createPullConsumer(config);
        consumer.subscribe(request.get("topic").getAsString(), null);
        consumer.completeSubscribe();
        long wanted = request.get("count").getAsLong();
        long got = 0;
        long bytes = 0;
        long start = 0;
        long end = 0;
        long until = System.currentTimeMillis() + Forms.number(request, "wait_ms", 60_000);
        while (got < wanted && System.currentTimeMillis() < until) {
            long before = System.nanoTime();
            ConsumerResult result = consumer.getMessage();
            if (!result.isSuccess()) {
                continue;
            }
            if (got == 0 && !result.getMessageList().isEmpty()) {
                start = before;
            }
            for (Message message : result.getMessageList()) {
                got++;
                bytes += message.getData().length;
            }
            consumer.confirmConsume(result.getConfirmContext(), true);
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
        PushMessageConsumer consumer = listen(request, (from, messages) -> {
            start.compareAndSet(0, System.nanoTime());
            if (got.addAndGet(messages.size()) >= wanted) {
                end.set(System.nanoTime());
                done.countDown();
            }
        });
        done.await(Forms.number(request, "wait_ms", 60_000), java.util.concurrent.TimeUnit.MILLISECONDS);
        consumer.shutdown();
        return report(got.get(), Math.max(end.get(), 1) - start.get());
    }

    private interface Receiver {
        void take(PeerInfo from, java.util.List<Message> messages);
    }

    private PushMessageConsumer listen(JsonObject request, Receiver receiver) throws Exception {
        PushMessageConsumer consumer = factory.createPushConsumer(Forms.consumerConfig(merged(request)));
        consumer.subscribe(request.get("topic").getAsString(), null, new MessageListener() {
            @Override
            public void receiveMessages(PeerInfo from, java.util.List<Message> messages) {
                receiver.take(from, messages);
            }

            @Override
            public java.util.concurrent.Executor getExecutor() {
                return null;
            }

            @Override
            public void stop() {
                // Nothing is held.
            }
        });
        consumer.completeSubscribe();
        return consumer;
    }

    /** A producer at a steady rate and a push consumer in one process: from the call of send to the listener. */
    private Object latency(JsonObject request) throws Throwable {
        String topic = request.get("topic").getAsString();
        int count = (int) request.get("count").getAsLong();
        int warm = (int) Forms.number(request, "warm", 1000);
        long gap = 1_000_000_000L / Forms.number(request, "rate", 1000);
        int size = (int) Forms.number(request, "size", 100);
        request.addProperty("start", "latest"); // the topic holds what other runs sent
        long[] taken = new long[count];
        AtomicLong got = new AtomicLong();
        CountDownLatch joined = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(1);
        PushMessageConsumer consumer = listen(request, (from, messages) -> {
            long now = System.nanoTime();
            for (Message message : messages) {
                java.nio.ByteBuffer head = java.nio.ByteBuffer.wrap(message.getData());
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
        });
        for (int i = 0; i < 600 && !joined.await(100, java.util.concurrent.TimeUnit.MILLISECONDS); i++) {
            producer.sendMessage(new Message(topic, body(-1, size)));
        }
        long next = System.nanoTime();
        for (int i = 0; i < warm + count; i++, next += gap) {
            for (long wait = next - System.nanoTime(); wait > 0; wait = next - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            producer.sendMessage(new Message(topic, body(i, size)), IGNORED);
        }
        done.await(20, java.util.concurrent.TimeUnit.SECONDS);
        consumer.shutdown();
        Arrays.sort(taken);
        Map<String, Object> form = report(got.get(), 0);
        form.put("p50_ms", taken[count / 2] / 1e6);
        form.put("p99_ms", taken[count * 99 / 100] / 1e6);
        form.put("max_ms", taken[count - 1] / 1e6);
        return form;
    }

    private static final MessageSentCallback IGNORED = new MessageSentCallback() {
        @Override
        public void onMessageSent(MessageSentResult result) {
            // The consumer counts.
        }

        @Override
        public void onException(Throwable failure) {
            // The consumer counts.
        }
    };

    private static byte[] body(long number, int size) {
        return java.nio.ByteBuffer.allocate(size).putLong(number).putLong(System.nanoTime()).array();
    }

    private JsonObject merged(JsonObject request) {
        JsonObject all = settings.deepCopy();
        request.entrySet().forEach(item -> all.add(item.getKey(), item.getValue()));
        return all;
    }

    @Override
    public void close() throws Throwable {
        factory.shutdown();
    }
}
