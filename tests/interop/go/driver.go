// A process with clients of rocketmq-client-go that does what JSON lines on stdin say, as Driver.java does.
// The end of stdin ends it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type message struct {
	Topic      string            `json:"topic"`
	Body       []byte            `json:"body"` // encoding/json writes and reads bytes as base64
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	DelayLevel int               `json:"delay_level"`
	OrderBy    any               `json:"order_by"`
}

type request struct {
	Call        int                        `json:"call"`
	On          string                     `json:"on"`
	Do          string                     `json:"do"`
	NameServer  string                     `json:"namesrv"`
	Group       string                     `json:"group"`
	AccessKey   string                     `json:"access_key"`
	SecretKey   string                     `json:"secret_key"`
	Topics      map[string]json.RawMessage `json:"topics"`
	Orderly     bool                       `json:"orderly"`
	Broadcast   bool                       `json:"broadcast"`
	Reply       bool                       `json:"reply"`
	MaxAttempts int32                      `json:"max_attempts"`
	Start       string                     `json:"start"`
	Messages    []message                  `json:"messages"`
	TimeoutMs   int                        `json:"timeout_ms"`
	message
}

type form = map[string]any

type peer interface {
	act(request) (any, error)
	close() error
}

var (
	out   sync.Mutex
	peers sync.Map
)

func say(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func (m message) make() *primitive.Message {
	made := primitive.NewMessage(m.Topic, m.Body)
	for name, value := range m.Properties {
		made.WithProperty(name, value)
	}
	if m.Tag != "" {
		made.WithTag(m.Tag)
	}
	if m.Keys != nil {
		made.WithKeys(m.Keys)
	}
	if m.DelayLevel != 0 {
		made.WithDelayTimeLevel(m.DelayLevel)
	}
	if m.OrderBy != nil {
		made.WithShardingKey(fmt.Sprint(m.OrderBy))
	}
	return made
}

func sent(result *primitive.SendResult) form {
	queue := result.MessageQueue
	return form{
		"status": map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[result.Status],
		"id":     result.MsgID, "offset_id": result.OffsetMsgID, "offset": result.QueueOffset,
		"topic": queue.Topic, "broker": queue.BrokerName, "queue": queue.QueueId,
	}
}

func received(one *primitive.MessageExt) form {
	id := one.GetProperty(primitive.PropertyUniqueClientMessageIdKeyIndex)
	if id == "" {
		id = one.MsgId
	}
	return form{
		"topic": one.Topic, "body": one.Body, "tag": one.GetTags(), "keys": one.GetKeys(), "id": id,
		"offset_id": one.OffsetMsgId, "properties": one.GetProperties(), "attempt": one.ReconsumeTimes,
		"broker": one.Queue.BrokerName, "queue": one.Queue.QueueId, "offset": one.QueueOffset,
		"born_ms": one.BornTimestamp, "stored_ms": one.StoreTimestamp,
	}
}

// Every client is one of its own: those with one instance name would share connections and groups.
func (r request) instance() string { return fmt.Sprintf("%s-%d", r.On, time.Now().UnixNano()) }

func (r request) servers() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{r.NameServer})
}

func (r request) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: r.AccessKey, SecretKey: r.SecretKey}
}

func (r request) sending() []producer.Option {
	options := []producer.Option{
		producer.WithNsResolver(r.servers()), producer.WithGroupName(r.Group),
		producer.WithInstanceName(r.instance()), producer.WithQueueSelector(byKey{}),
	}
	if r.AccessKey != "" {
		options = append(options, producer.WithCredentials(r.credentials()))
	}
	return options
}

// Messages with a key go to the queue of its hash, others to one after the other.
type byKey struct{}

var (
	hashed = producer.NewHashQueueSelector()
	inTurn = producer.NewRoundRobinQueueSelector()
)

func (byKey) Select(one *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if one.GetShardingKey() != "" {
		return hashed.Select(one, queues, last)
	}
	return inTurn.Select(one, queues, last)
}

type producing struct{ rocketmq.Producer }

func newProducer(r request) (peer, error) {
	made, err := rocketmq.NewProducer(r.sending()...)
	if err != nil {
		return nil, err
	}
	return producing{made}, made.Start()
}

func (p producing) act(r request) (any, error) {
	ctx := context.Background()
	switch r.Do {
	case "send":
		return p.send(ctx, r.message.make())
	case "batch":
		var batch []*primitive.Message
		for _, one := range r.Messages {
			batch = append(batch, one.make())
		}
		return p.send(ctx, batch...)
	case "send_many":
		return p.sendMany(ctx, r.Messages), nil
	case "oneway":
		return true, p.SendOneWay(ctx, r.message.make())
	case "request":
		reply, err := p.Request(ctx, time.Duration(r.TimeoutMs)*time.Millisecond, r.message.make())
		if err != nil {
			return nil, err
		}
		return form{"body": reply.Body}, nil
	}
	return nil, errors.New("a producer cannot " + r.Do)
}

func (p producing) send(ctx context.Context, messages ...*primitive.Message) (any, error) {
	result, err := p.SendSync(ctx, messages...)
	if err != nil {
		return nil, err
	}
	return sent(result), nil
}

func (p producing) sendMany(ctx context.Context, messages []message) []form {
	results := make(chan form)
	for _, one := range messages {
		took := func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil {
				results <- form{"status": "FAILED", "text": err.Error()}
				return
			}
			results <- sent(result)
		}
		if err := p.SendAsync(ctx, took, one.make()); err != nil {
			go took(ctx, nil, err)
		}
	}
	var all []form
	for range messages {
		all = append(all, <-results)
	}
	return all
}

func (p producing) close() error { return p.Shutdown() }

// A transactional producer: the properties LOCAL and CHECK of a message say how its transaction ends.
type transacting struct {
	rocketmq.TransactionProducer
	name string
}

func newTransacting(r request) (peer, error) {
	made, err := rocketmq.NewTransactionProducer(listener{r.On}, r.sending()...)
	if err != nil {
		return nil, err
	}
	return transacting{made, r.On}, made.Start()
}

type listener struct{ name string }

func state(wish string) primitive.LocalTransactionState {
	switch wish {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (listener) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return state(one.GetProperty("LOCAL"))
}

func (l listener) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	say(form{"on": l.name, "event": "checked", "state": one.GetProperty("CHECK")})
	return state(one.GetProperty("CHECK"))
}

func (t transacting) act(r request) (any, error) {
	if r.Do != "send" {
		return nil, errors.New("a transactional producer cannot " + r.Do)
	}
	result, err := t.SendMessageInTransaction(context.Background(), r.message.make())
	if err != nil {
		return nil, err
	}
	return sent(result.SendResult), nil
}

func (t transacting) close() error { return t.Shutdown() }

// A push consumer: says what it gets. A message whose property FAIL_TIMES is n fails its first n times; with
// "reply" every message is answered.
type pushing struct {
	rocketmq.PushConsumer
	replies rocketmq.Producer
}

func newPush(r request) (peer, error) {
	from := consumer.ConsumeFromFirstOffset
	if r.Start == "latest" {
		from = consumer.ConsumeFromLastOffset
	}
	options := []consumer.Option{
		consumer.WithNsResolver(r.servers()), consumer.WithGroupName(r.Group), consumer.WithInstance(r.instance()),
		consumer.WithConsumeFromWhere(from), consumer.WithConsumerOrder(r.Orderly),
		consumer.WithSuspendCurrentQueueTimeMillis(200 * time.Millisecond),
	}
	if r.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if r.MaxAttempts != 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(r.MaxAttempts-1)) // without the first
	}
	if r.AccessKey != "" {
		options = append(options, consumer.WithCredentials(r.credentials()))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	push := pushing{PushConsumer: made}
	if r.Reply {
		r.Group += "_replies"
		if push.replies, err = rocketmq.NewProducer(r.sending()...); err != nil {
			return nil, err
		}
		if err = push.replies.Start(); err != nil {
			return nil, err
		}
	}
	for topic, wanted := range r.Topics {
		selector, err := selecting(wanted)
		if err != nil {
			return nil, err
		}
		if err := made.Subscribe(topic, selector, push.handler(r)); err != nil {
			return nil, err
		}
	}
	return push, made.Start()
}

func selecting(wanted json.RawMessage) (consumer.MessageSelector, error) {
	var sql struct{ SQL string }
	if json.Unmarshal(wanted, &sql) == nil {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: sql.SQL}, nil
	}
	var tags string
	err := json.Unmarshal(wanted, &tags)
	return consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, err
}

type handler = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (p pushing) handler(r request) handler {
	return func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		event, forms := "messages", []form{}
		for _, one := range messages {
			if times, _ := strconv.Atoi(one.GetProperty("FAIL_TIMES")); int(one.ReconsumeTimes) < times {
				event = "failed"
			}
			forms = append(forms, received(one))
		}
		say(form{"on": r.On, "event": event, "messages": forms})
		if event == "failed" {
			if r.Orderly {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			if retry, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				retry.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		}
		for _, one := range messages {
			if p.replies == nil || one.GetProperty(primitive.PropertyMessageReplyToClient) == "" {
				continue
			}
			reply, err := consumer.CreateReplyMessage(one, nil) // it reads a body as properties
			if err == nil {
				reply.Body = append([]byte("re:"), one.Body...)
				_, err = p.replies.SendSync(ctx, reply)
			}
			if err != nil {
				say(form{"on": r.On, "event": "reply failed", "text": err.Error()})
			}
		}
		return consumer.ConsumeSuccess, nil
	}
}

func (p pushing) act(r request) (any, error) { return nil, errors.New("a consumer cannot " + r.Do) }

func (p pushing) close() error {
	if p.replies != nil {
		defer p.replies.Shutdown()
	}
	return p.Shutdown()
}

var kinds = map[string]func(request) (peer, error){
	"producer": newProducer, "transaction": newTransacting, "push": newPush,
}

func act(r request) (any, error) {
	if r.Do == "close" {
		if gone, here := peers.LoadAndDelete(r.On); here {
			return r.On, gone.(peer).close()
		}
		return r.On, nil
	}
	if open, known := kinds[r.Do]; known {
		made, err := open(r)
		if err == nil {
			peers.Store(r.On, made)
		}
		return r.On, err
	}
	found, here := peers.Load(r.On)
	if !here {
		return nil, fmt.Errorf("there is no %s", r.On)
	}
	return found.(peer).act(r)
}

func main() {
	rlog.SetLogLevel("warn")
	say(form{"event": "ready"})
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			panic(err)
		}
		go func() {
			if done, err := act(r); err != nil {
				say(form{"call": r.Call, "error": err.Error()})
			} else {
				say(form{"call": r.Call, "ok": done})
			}
		}()
	}
}
