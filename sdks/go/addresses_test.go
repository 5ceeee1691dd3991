// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"testing"
)

func TestSeveralAddressesAreTriedAgainAfterALoss(t *testing.T) {
	first, second := startBroker(t), startBroker(t)
	target := freeAddress(t) + ", " + first.target + "," + second.target
	client := newClient(t, target, quick)
	check(t, client.Ack(t.Context(), "orders", "m", ""))
	used, other := first, second
	if len(first.seenOf("AckBatch")) == 0 {
		used, other = second, first
	}
	equal(t, "acks of the one that is used", len(used.seenOf("AckBatch")), 1)
	equal(t, "acks of the other one", len(other.seenOf("AckBatch")), 0)
	used.stop()
	eventually(t, "the other one is used", func() bool {
		return client.Ack(t.Context(), "orders", "m", "") == nil
	})
	equal(t, "acks of the other one", len(other.seenOf("AckBatch")) > 0, true)
	again := startBrokerAt(t, used.target, frames())
	other.stop()
	eventually(t, "the one that is there again is used", func() bool {
		return client.Ack(t.Context(), "orders", "m", "") == nil
	})
	equal(t, "acks of that", len(again.seenOf("AckBatch")) > 0, true)
}
