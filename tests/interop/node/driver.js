'use strict';
// One process that holds Node clients of RocketMQ and does what JSON lines on stdin say, as Driver.java does.
// ali-ons is found through NODE_PATH. The end of stdin ends the process.

const readline = require('readline');
const { Producer, Consumer, Message } = require('ali-ons');

const print = value => process.stdout.write(JSON.stringify(value) + '\n');
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };
const peers = new Map();

function options(request, more) {
  return {
    httpclient: {},
    nameSrv: request.namesrv,
    accessKey: '',
    secretKey: '',
    logger,
    ...more,
  };
}

const kinds = {
  async producer(name, request) {
    const producer = new Producer(options(request, { producerGroup: request.group || 'node_producers' }));
    await producer.ready();
    return {
      async send(one) {
        const message = new Message(one.topic, one.tag || '', Buffer.from(one.body, 'base64'));
        if (one.keys) message.keys = one.keys;
        for (const [ key, value ] of Object.entries(one.properties || {})) message.properties[key] = value;
        if (one.delay_level) message.delayTimeLevel = one.delay_level;
        const result = await producer.send(message);
        return { status: result.sendStatus, id: result.msgId, offset: Number(result.queueOffset), queue: result.messageQueue.queueId };
      },
      close: () => producer.close(),
    };
  },

  async push(name, request) {
    const consumer = new Consumer(options(request, {
      consumerGroup: request.group,
      isBroadcast: !!request.broadcast,
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
      persistent: false,
    }));
    for (const [ topic, tags ] of Object.entries(request.topics)) {
      consumer.subscribe(topic, tags, async message => {
        const failed = Number(message.properties.FAIL_TIMES || 0) > message.reconsumeTimes;
        print({
          on: name,
          event: failed ? 'failed' : 'messages',
          messages: [{
            topic: message.topic,
            tag: message.tags || null,
            keys: message.keys || null,
            body: message.body.toString('base64'),
            id: message.msgId,
            queue: message.queueId,
            offset: Number(message.queueOffset),
            attempt: message.reconsumeTimes,
            properties: message.properties,
          }],
        });
        if (failed) throw new Error('told to fail');
      });
    }
    await consumer.ready();
    return { close: () => consumer.close() };
  },
};

async function act(request) {
  const { on: name, do: action } = request;
  if (action in kinds) {
    peers.set(name, await kinds[action](name, request));
    return name;
  }
  const peer = peers.get(name);
  if (!peer || !(action in peer)) throw new Error(`${name} cannot ${action}`);
  return await peer[action](request);
}

print({ event: 'ready' });
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async line => {
  const request = JSON.parse(line);
  try {
    print({ call: request.call, ok: (await act(request)) || null });
  } catch (error) {
    print({ call: request.call, error: String(error) });
  }
});
lines.on('close', () => process.exit(0));
