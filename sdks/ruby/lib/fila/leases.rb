# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# How long messages are a client's: the lease of each frame, and the keeper that prolongs it.
#
# A frame has one lease. It is counted from the frame's arrival on this machine's clock, for as long
# as the broker's two times are apart, so clocks that differ do no harm. Half of it later, while
# something of the frame is held, the keeper asks for as much again: one request for all frames of a
# client that are due at that moment. What is not held any more is not the keeper's business, so a
# message that the application loses is not hidden from others for ever.

require "fila/grants"
require "fila/threads"
require "fila/wire"

module Fila
  # The lease of one frame. Its keeper's lock guards what changes; who only asks needs none.
  class Lease
    attr_reader :size, :seconds
    attr_accessor :ends_at, :extend_at

    def initialize(messages, now)
      @size = messages.length
      @held = {}.compare_by_identity
      messages.each { |message| @held[message] = true }
      @seconds = length_of(messages.first.timestamps)
      renew(now)
    end

    # Whether it is known how long the lease lasts. Forever otherwise.
    def known?
      @seconds.positive?
    end

    def renew(now)
      @ends_at = known? ? now + @seconds : Float::INFINITY
      @extend_at = known? ? now + (@seconds / 2) : Float::INFINITY
    end

    # Whether the message must not be handed out any more.
    def over?(message, now)
      now >= @ends_at || !@held.key?(message)
    end

    def held
      @held.keys
    end

    # Whether nothing is held now.
    def let_go(message)
      @held.delete(message)
      @held.empty?
    end

    def lose
      @held.clear
    end

    # The request to prolong it, always the same.
    def item
      @item ||= begin
        metadata = held.first.metadata
        extension = V1::GrantExtension.new(extend_ms: milliseconds)
        Grants.item(metadata.queue_id, metadata.lease_token, [], extend: extension)
      end
    end

    def milliseconds
      (@seconds * 1000).ceil
    end

    private

    def length_of(timestamps)
      leased_at = timestamps&.leased_at
      expires_at = timestamps&.lease_expires_at
      return 0.0 if leased_at.nil? || expires_at.nil?

      (expires_at.seconds - leased_at.seconds) + ((expires_at.nanos - leased_at.nanos) / 1e9)
    end
  end

  private_constant :Lease

  # Keeps the leases of one client.
  class Leases
    # How soon a request is sent again that failed; a tenth of the lease if that is less.
    AGAIN_S = 1.0
    # A request that is sent shortly before a lease ends gets at least so long.
    TIMEOUT_MIN_S = 0.1
    private_constant :AGAIN_S, :TIMEOUT_MIN_S

    def initialize(connection)
      @connection = connection
      @lock = Mutex.new
      @changed = ConditionVariable.new
      @kept = {}.compare_by_identity
      @is_running = false
      @wakes_at = 0.0
    end

    # The lease of a frame that arrived now. It is kept until nothing of the frame is held.
    def begin(messages, is_kept: true)
      lease = Lease.new(messages, Clock.now)
      keep(lease) if is_kept && lease.known?
      lease
    end

    # A message is nobody's in this client any more.
    def let_go(lease, message)
      @lock.synchronize { @kept.delete(lease) if lease.let_go(message) }
    end

    # All of a frame is nobody's.
    def forget(lease)
      @lock.synchronize do
        lease.lose
        @kept.delete(lease)
      end
    end

    # Ends the keeper when the connection is closed.
    def close
      @lock.synchronize { @changed.broadcast }
    end

    private

    def keep(lease)
      @lock.synchronize do
        @kept[lease] = true
        if @is_running
          @changed.signal if lease.extend_at < @wakes_at
        else
          @is_running = true
          @connection.threads.run { run }
        end
      end
    end

    # Runs while there is something to keep.
    def run
      while (due = wait)
        due.each_slice(Wire::BATCH_ITEMS_MAX) { |leases| extend_all(leases) }
      end
    end

    # The leases to prolong, when there are some; false when there is nothing to keep.
    def wait
      @lock.synchronize do
        loop do
          now = Clock.now
          @kept.delete_if { |lease, _| lease.ends_at <= now }
          return @is_running = false if @kept.empty? || @connection.closed?

          due = @kept.keys.select { |lease| lease.extend_at <= now }
          return due if due.any?

          @wakes_at = @kept.each_key.map(&:extend_at).min
          @changed.wait(@lock, @wakes_at - now)
        end
      end
    end

    def extend_all(leases)
      now = Clock.now
      # What is not answered, or not well, is sent again.
      items = @lock.synchronize do
        leases.select! { |lease| lease.held.any? }
        leases.each { |lease| lease.extend_at = now + [AGAIN_S, lease.seconds / 10].min }
        leases.map(&:item)
      end
      return if leases.empty?

      answer = @connection.grants? ? send_all(Grants::SETTLE, items, leases) : nil
      @connection.forget_grants if answer.is_a?(UnimplementedError)
      return extend_each(leases) unless @connection.grants?
      return if answer.is_a?(Error)

      leases.zip(answer) { |lease, outcome| note(lease, outcome, now) { lease.lose } }
    end

    # For a broker that knows no grants: names each message.
    def extend_each(leases)
      held = @lock.synchronize do
        leases.flat_map { |lease| lease.held.map { |message| [lease, message] } }
      end
      held.each_slice(Wire::BATCH_ITEMS_MAX) do |some|
        items = some.map do |lease, message|
          metadata = message.metadata
          Wire.extend_item(metadata.queue_id, message.id, metadata.lease_token, lease.milliseconds)
        end
        now = Clock.now
        answer = send_all(Wire::EXTEND, items, some.map(&:first))
        next if answer.is_a?(Error)

        some.zip(answer) do |(lease, message), outcome|
          note(lease, outcome, now) { lease.let_go(message) }
        end
      end
    end

    # What an item's outcome means; yields when it is the end.
    def note(lease, outcome, sent_at)
      @lock.synchronize do
        next lease.renew(sent_at) unless outcome.is_a?(Error)

        yield
        @kept.delete(lease) if lease.held.empty?
      end
    end

    # The outcomes, or the Error of the request. It has no longer than the first lease that it is
    # about: a broker that does not answer must leave time to ask again for the others.
    def send_all(rpc, items, leases)
      remaining = leases.map(&:ends_at).min - Clock.now
      timeout = [@connection.timeout, [remaining, TIMEOUT_MIN_S].max].min
      answer = @connection.send_here(rpc.method_path, Wire.join(items), rpc.response, timeout,
                                     Tracing::NOTHING)
      answer.is_a?(Error) ? answer : rpc.outcomes(answer, items)
    end
  end
  private_constant :Leases
end
