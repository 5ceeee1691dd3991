// SPDX-License-Identifier: AGPL-3.0-only

package fila

import "time"

// SetStallTime shortens what takes half a minute.
func SetStallTime(c *Client, stall time.Duration) {
	c.connection.enqueues.stallTime, c.connection.settlements.stallTime = stall, stall
}

// WaitingEnqueues lets tests wait until a call waits for a slot: no other sign of it exists.
func WaitingEnqueues(c *Client) int { return c.enqueues.waitingCount() }

// WaitingAcks is the same for acks.
func WaitingAcks(c *Client) int { return c.acks.waitingCount() }

func (c *coalescer[R]) waitingCount() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.waiting.Len()
}
