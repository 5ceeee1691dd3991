// SPDX-License-Identifier: AGPL-3.0-only

package main

import (
	"context"
	"errors"
	"time"

	"github.com/beanstalkd/go-beanstalk"
)

const lease = 10 * time.Minute

type beanstalkClient struct {
	tube    *beanstalk.Tube
	tubes   *beanstalk.TubeSet
	putting *beanstalk.Conn
	taking  *beanstalk.Conn
}

func dialBeanstalkd(chosen spec) (client, error) {
	putting, err := beanstalk.Dial("tcp", chosen.Address)
	if err != nil {
		return nil, err
	}
	// A reserve holds its connection up.
	taking, err := beanstalk.Dial("tcp", chosen.Address)
	if err != nil {
		return nil, err
	}
	return &beanstalkClient{
		beanstalk.NewTube(putting, chosen.Queue), beanstalk.NewTubeSet(taking, chosen.Queue),
		putting, taking,
	}, nil
}

func (c *beanstalkClient) produce(ctx context.Context, payload []byte, count int) error {
	for range count {
		if err := c.send(ctx, payload); err != nil {
			return err
		}
	}
	return nil
}

func (c *beanstalkClient) send(_ context.Context, payload []byte) error {
	_, err := c.tube.Put(payload, 1024, 0, lease)
	return err
}

func (c *beanstalkClient) consume(ctx context.Context, to sink) error {
	for ctx.Err() == nil {
		number, payload, err := c.tubes.Reserve(0)
		if errors.Is(err, beanstalk.ErrTimeout) {
			// The protocol waits whole seconds; this is over sooner when all is done.
			number, payload, err = c.tubes.Reserve(time.Second)
		}
		if errors.Is(err, beanstalk.ErrTimeout) {
			continue
		}
		if err != nil {
			return err
		}
		to.seen(payload)
		if err := c.taking.Delete(number); err != nil {
			return err
		}
		to.acked(1)
	}
	return nil
}

// settle has nothing to wait for: every ack was answered.
func (c *beanstalkClient) settle(context.Context) error { return nil }

func (c *beanstalkClient) close() {
	_ = c.putting.Close()
	_ = c.taking.Close()
}
