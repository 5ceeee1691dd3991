# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The channel in use: when another takes its place, and what is told of its connection.
#
#   idle --first call--> connecting --> ready: connected
#    ^                       |            |
#    '-------- lost ---------+------------'        after a failed attempt: unreachable
#
# gRPC makes connections, and makes them again. It knows certificates as texts and lists of
# addresses as numbers; so where those may change, a channel that has lost its connection is
# replaced by one that is made of what is there now. A thread waits for gRPC to say that the
# connection has changed: it begins with the first call, because a client that is not used has
# nothing to tell.

require "grpc"

require "fila/channel"
require "fila/threads"

module Fila
  # A change of a client's connection: `kind` is :connected, :lost or :unreachable, `reason` a text,
  # or nil where nobody knows.
  ConnectionEvent = Struct.new(:kind, :reason, keyword_init: true)

  # Holds one channel at a time.
  class Link
    States = GRPC::Core::ConnectivityStates
    # While there is no connection, files are read and names resolved again so often at most.
    RENEW_S = 1.0
    # How long gRPC waits for a change before it is asked again.
    WATCH_S = 600
    # A channel that has just failed says why at once.
    REASON_S = 1.0
    # Closing a channel wakes who watches it.
    CLOSE_S = 2.0
    HEALTH = "/grpc.health.v1.Health/Check"
    private_constant :States, :RENEW_S, :WATCH_S, :REASON_S, :CLOSE_S, :HEALTH

    # `settings` are those of Channel.open.
    def initialize(addresses, tls:, interceptors:, on_connection:, **settings)
      @addresses = addresses
      @tls = tls
      @settings = settings
      @interceptors = interceptors
      @on_connection = on_connection
      @is_changeable = Channel.changeable?(addresses, tls)
      @lock = Mutex.new
      @is_closed = false
      @watcher = nil
      @told = nil
      @lost_at = nil
      # Wrong files are told at once; names are not resolved before somebody calls.
      Channel.certificates(tls) if tls
    end

    # What calls are made with. Raises UnavailableError when no address can be resolved.
    def stub
      return @stub if @stub && (!@is_changeable || connected?)

      @lock.synchronize do
        renew
        watch
        @stub
      end
    end

    # Whether there is a connection at the moment.
    def connected?
      state_of(@channel) == States::READY
    end

    # Closes the channel. Nothing must be under way on it.
    def close
      watcher = @lock.synchronize do
        @is_closed = true
        @channel&.close
        @watcher
      end
      watcher.join(CLOSE_S) if watcher && watcher != Thread.current
    end

    private

    # Makes a channel if there is none, or none that is of use and made of what is there now. The
    # lock is held.
    def renew
      return if @is_closed || (@channel && (Clock.now < @renew_at || in_use?))

      @renew_at = Clock.now + RENEW_S
      found = ingredients
      return if @ingredients == found

      channel = Channel.open(found, addresses: @addresses, tls: @tls, **@settings)
      @stub = GRPC::ClientStub.new(@addresses.first, :this_channel_is_insecure,
                                   channel_override: channel, interceptors: @interceptors)
      @ingredients = found
      replaced = @channel
      @channel = channel
      # Nobody waits for it: without a connection calls fail at once.
      replaced&.close
    end

    def in_use?
      [States::READY, States::CONNECTING].include?(state_of(@channel))
    end

    # While files are being replaced, one of them may be missing.
    def ingredients
      Channel.ingredients(@addresses, @tls)
    rescue ArgumentError, UnavailableError
      @ingredients || raise
    end

    # A closed channel raises.
    def state_of(channel)
      channel.nil? ? States::IDLE : channel.connectivity_state
    rescue RuntimeError
      States::FATAL_FAILURE
    end

    # --- The thread that watches -----------------------------------------------------------------

    # The lock is held.
    def watch
      return if @watcher || @is_closed

      # A thread inherits what its creator has put off, and could not be ended at exit.
      @watcher = Thread.new { Thread.handle_interrupt(Object => :immediate) { follow } }
      @watcher.name = "fila connection"
    end

    def follow
      channel = nil
      until channel.equal?(@channel)
        channel = @channel
        state = States::IDLE
        until (following = change(channel, state)) == States::FATAL_FAILURE
          note(channel, following)
          state = following
        end
      end
    end

    # The state after a change, which may be the same again: much happens between two looks.
    def change(channel, state)
      has_changed = channel.watch_connectivity_state(state, Time.now + WATCH_S)
      found = state_of(channel)
      tell(:lost, nil) if has_changed && found == state && @told == :connected
      found
    rescue RuntimeError
      States::FATAL_FAILURE
    end

    def note(channel, state)
      case state
      when States::READY
        tell(:connected, nil) unless @told == :connected
      when States::TRANSIENT_FAILURE
        tell(:lost, nil) if @told == :connected
        tell(:unreachable, reason_of(channel)) unless @told == :unreachable
      else
        tell(:lost, nil) if @told == :connected
      end
    end

    # What a call would fail with now.
    def reason_of(channel)
      stub = GRPC::ClientStub.new(@addresses.first, :this_channel_is_insecure,
                                  channel_override: channel)
      stub.request_response(HEALTH, "", :itself.to_proc, :itself.to_proc,
                            deadline: Time.now + REASON_S)
      nil
    rescue GRPC::Unavailable => e
      e.details
    rescue GRPC::BadStatus, RuntimeError
      nil
    end

    def tell(kind, reason)
      return if @is_closed

      @told = kind
      log(kind, reason)
      @on_connection&.call(ConnectionEvent.new(kind:, reason:))
    rescue StandardError, ScriptError => e
      Fila.logger.warn("on_connection failed: #{e.class}: #{e.message}")
    end

    def log(kind, reason)
      name = "the connection to #{@addresses.join(",")}"
      if kind == :connected
        Fila.logger.info("#{name} is there again after #{away_s.round(1)} s") if @lost_at
        @lost_at = nil
      else
        @lost_at ||= Clock.now
        what = kind == :lost ? "was lost" : "cannot be made"
        Fila.logger.warn(["#{name} #{what}", reason].compact.join(": "))
      end
    end

    def away_s
      Clock.now - @lost_at
    end
  end
  private_constant :Link
end
