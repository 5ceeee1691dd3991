// SPDX-License-Identifier: AGPL-3.0-only

package fila

import (
	"time"

	"google.golang.org/grpc/connectivity"
)

// SetStallTime shortens what takes half a minute.
func SetStallTime(c *Client, stall time.Duration) {
	c.connection.enqueues.stallTime, c.connection.settlements.stallTime = stall, stall
}

// WaitingEnqueues lets tests wait until a call waits for a slot: no other sign of it exists.
func WaitingEnqueues(c *Client) int { return c.enqueues.waitingCount() }

// WaitingAcks is the same for acks.
func WaitingAcks(c *Client) int { return c.acks.waitingCount() }

// OutsideTheRoom is how many calls wait for room.
func OutsideTheRoom(c *Client) int {
	c.enqueues.room.lock.Lock()
	defer c.enqueues.room.lock.Unlock()
	return c.enqueues.room.line.Len()
}

// Flushed is how many generations of calls a flush waits for.
func Flushed(c *Client) int {
	c.promises.lock.Lock()
	defer c.promises.lock.Unlock()
	return len(c.promises.over)
}

func (c *coalescer[R]) waitingCount() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.waiting.Len()
}

// UnderWay is how many enqueues a stream has that were not answered.
func UnderWay(c *Client) int {
	p := c.connection.enqueues
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.open == nil {
		return 0
	}
	return len(p.open.slots)
}

// Both is two options as one, for tables that have one.
func Both(first, second ClientOption) ClientOption {
	return func(s *settings) {
		first(s)
		second(s)
	}
}

// IsIdle is true before the first use of a connection, and after gRPC let go of it.
func IsIdle(c *Client) bool { return c.connection.grpc.GetState() == connectivity.Idle }
