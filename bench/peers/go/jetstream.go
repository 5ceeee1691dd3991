// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type jetClient struct {
	chosen     spec
	connection *nats.Conn
	streams    jetstream.JetStream
	consumer   jetstream.Consumer
}

func dialJetStream(chosen spec) (client, error) {
	connection, err := nats.Connect("nats://" + chosen.Address)
	if err != nil {
		return nil, err
	}
	streams, err := jetstream.New(
		connection, jetstream.WithPublishAsyncMaxPending(credit(chosen.Window)))
	if err != nil {
		return nil, err
	}
	consumer, err := streams.Consumer(context.Background(), chosen.Queue, group)
	return &jetClient{chosen, connection, streams, consumer}, err
}

func (c *jetClient) produce(ctx context.Context, payload []byte, count int) error {
	if c.chosen.Window == 1 {
		for range count {
			if err := c.send(ctx, payload); err != nil {
				return err
			}
		}
		return nil
	}
	answers := make([]jetstream.PubAckFuture, count)
	for i := range answers {
		answer, err := c.streams.PublishAsync(
			c.chosen.Queue, payload, jetstream.WithStallWait(timeout))
		if err != nil {
			return err
		}
		answers[i] = answer
	}
	<-c.streams.PublishAsyncComplete()
	for _, answer := range answers {
		select {
		case err := <-answer.Err():
			return err
		case <-answer.Ok():
		}
	}
	return nil
}

func (c *jetClient) send(ctx context.Context, payload []byte) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := c.streams.Publish(limited, c.chosen.Queue, payload)
	return err
}

// consume counts an ack when it is sent: the library's Ack asks for no answer.
func (c *jetClient) consume(ctx context.Context, to sink) error {
	if c.chosen.Window == 1 {
		return c.receive(ctx, to)
	}
	var once sync.Once
	var failure error
	failed := make(chan struct{})
	running, err := c.consumer.Consume(func(message jetstream.Msg) {
		to.seen(message.Data())
		if err := message.Ack(); err != nil {
			once.Do(func() { failure = err; close(failed) })
			return
		}
		to.acked(1)
	}, jetstream.PullMaxMessages(credit(c.chosen.Window)))
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-failed:
		return failure
	}
	running.Stop()
	return c.connection.Flush()
}

func (c *jetClient) receive(ctx context.Context, to sink) error {
	for ctx.Err() == nil {
		message, err := c.consumer.Next(jetstream.FetchMaxWait(patience))
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoMessages) {
			continue
		}
		if err != nil {
			return err
		}
		to.seen(message.Data())
		if err := message.Ack(); err != nil {
			return err
		}
		to.acked(1)
	}
	return c.connection.Flush()
}

// settle waits until the stream is empty: acked messages leave it.
func (c *jetClient) settle(ctx context.Context) error {
	stream, err := c.streams.Stream(ctx, c.chosen.Queue)
	if err != nil {
		return err
	}
	for {
		info, err := stream.Info(ctx)
		if err != nil || info.State.Msgs == 0 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *jetClient) close() { c.connection.Close() }
