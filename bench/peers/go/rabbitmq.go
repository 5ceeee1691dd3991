// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var errRefused = errors.New("RabbitMQ refused a message")

type rabbitClient struct {
	chosen     spec
	connection *amqp.Connection
	channel    *amqp.Channel
}

func dialRabbitMQ(chosen spec) (client, error) {
	connection, err := amqp.Dial("amqp://guest:guest@" + chosen.Address + "/")
	if err != nil {
		return nil, err
	}
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	return &rabbitClient{chosen, connection, channel}, channel.Confirm(false)
}

func (c *rabbitClient) publish(
	ctx context.Context, payload []byte,
) (*amqp.DeferredConfirmation, error) {
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: payload}
	return c.channel.PublishWithDeferredConfirmWithContext(
		ctx, "", c.chosen.Queue, false, false, message)
}

func confirmed(ctx context.Context, answer *amqp.DeferredConfirmation) error {
	stored, err := answer.WaitContext(ctx)
	if err == nil && !stored {
		err = errRefused
	}
	return err
}

func (c *rabbitClient) produce(ctx context.Context, payload []byte, count int) error {
	// As many as may be unconfirmed; the oldest is waited for before the next leaves.
	answers := make(chan *amqp.DeferredConfirmation, credit(c.chosen.Window))
	for range count {
		if len(answers) == cap(answers) {
			if err := confirmed(ctx, <-answers); err != nil {
				return err
			}
		}
		answer, err := c.publish(ctx, payload)
		if err != nil {
			return err
		}
		answers <- answer
	}
	close(answers)
	for answer := range answers {
		if err := confirmed(ctx, answer); err != nil {
			return err
		}
	}
	return nil
}

func (c *rabbitClient) send(ctx context.Context, payload []byte) error {
	answer, err := c.publish(ctx, payload)
	if err != nil {
		return err
	}
	return confirmed(ctx, answer)
}

func (c *rabbitClient) consume(ctx context.Context, to sink) error {
	if err := c.channel.Qos(credit(c.chosen.Window), 0, false); err != nil {
		return err
	}
	found, err := c.channel.Consume(c.chosen.Queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	var last amqp.Delivery
	held := 0
	settle := func() error {
		if held == 0 {
			return nil
		}
		if err := last.Ack(true); err != nil {
			return err
		}
		to.acked(held)
		held = 0
		return nil
	}
	lulls := time.NewTicker(lull)
	defer lulls.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lulls.C:
			if err := settle(); err != nil {
				return err
			}
		case message, open := <-found:
			if !open {
				return errors.New("RabbitMQ closed the channel")
			}
			to.seen(message.Body)
			last = message
			if held++; held == c.chosen.Window {
				if err := settle(); err != nil {
					return err
				}
			}
		}
	}
}

// settle has nothing to wait for: a channel's acks are handled in order, and none is answered.
func (c *rabbitClient) settle(context.Context) error { return nil }

func (c *rabbitClient) close() { _ = c.connection.Close() }
