# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Loads the SDK and gives every example a scripted broker, a client of it and a quiet log.

require "socket"
require "stringio"
require "timeout"

require "fila"

require_relative "support/gate"
require_relative "support/scripted_broker"
require_relative "support/wire"

# What examples share.
module Support
  # Everything is soon; only a defect takes this long.
  PATIENCE_S = 20
  QUICK = Fila::Backoff.new(initial: 0.02, maximum: 0.1)
  PORTS = (20_000...32_000).to_a.shuffle.cycle
  CERTS = File.join(__dir__, "certs")

  def eventually(what = "it")
    deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_S
    until (found = yield)
      raise "#{what} did not happen" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline

      sleep 0.005
    end
    found
  end

  # Starts a broker, and stops it when the example ends.
  def start_broker(...)
    ScriptedBroker.new(...).tap { |broker| brokers << broker }
  end

  def brokers
    @brokers ||= []
  end

  # A port where nobody listens, for brokers that come later or again. No other example is given
  # it, and no connection: of the ephemeral range, whoever listens on port 0 could take it
  # meanwhile, and a client that tries to connect there may find itself.
  def free_port
    port = PORTS.next
    TCPServer.new("127.0.0.1", port).close
    port
  rescue Errno::EADDRINUSE
    retry
  end

  # A client that is closed when the example ends.
  def open_client(target = broker.target, **options)
    Fila::Client.new(target, **options).tap { |client| clients << client }
  end

  def clients
    @clients ||= []
  end

  # A thread whose error, if any, comes from `value` and not from the log.
  def in_thread(&block)
    Thread.new(&block).tap { |thread| thread.report_on_exception = false }
  end

  def cert(name)
    File.join(CERTS, name)
  end
end

RSpec.configure do |config|
  config.include Support
  config.include Wire
  config.disable_monkey_patching!
  config.raise_errors_for_deprecations!
  config.raise_on_warning = true
  config.order = :random
  Kernel.srand(config.seed)

  config.around do |example|
    log = Fila.logger
    Fila.logger = Logger.new(@log = StringIO.new)
    Timeout.timeout(2 * Support::PATIENCE_S) { example.run }
  ensure
    clients.each(&:close)
    brokers.each(&:stop)
    Fila.logger = log
  end
end

RSpec.shared_context "with a broker" do
  let(:broker) { start_broker }
  let(:client) { open_client }
end

RSpec.configure { |config| config.include_context "with a broker" }
