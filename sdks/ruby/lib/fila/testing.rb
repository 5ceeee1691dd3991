# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# A real broker for tests: `require "fila/testing"`, which "fila" does not load.
#
# It is a process of its own, `fila-server`, on a free port of the loopback interface, with its data
# in a directory that goes away with it. Its standard input is a pipe from here, and it stops when
# that ends: so it does not outlive this process, however this one ends.

require "fileutils"
require "json"
require "tmpdir"

require "fila"

module Fila
  # Brokers that tests start.
  module Testing
    # There is no `fila-server`, or it did not start.
    class Error < StandardError; end

    # Starts a broker. With a block, yields it, stops it afterwards and returns what the block
    # returned; without one the broker is stopped by its `stop`, or when the process ends.
    #
    # `config` is more of the broker's configuration file (TOML), such as "[scheduler]\nquantum =
    # 10". A start takes about a second: have one for all tests, and a queue for each.
    def self.broker(config: "")
      broker = Broker.new(config)
      return broker unless block_given?

      begin
        yield broker
      ensure
        broker.stop
      end
    end

    # A running broker.
    class Broker
      PROGRAM = "fila-server"
      READY = "FILA READY "
      # Busy machines take long; only a defect takes this long.
      START_S = 60
      STOP_S = 20
      # The end of the log says why it did not start.
      SHOWN_BYTES = 2000
      private_constant :PROGRAM, :READY, :START_S, :STOP_S, :SHOWN_BYTES

      # "host:port", for clients.
      attr_reader :address

      # Brokers come from `Testing.broker`.
      def initialize(config)
        @owner = Process.pid
        @folder = Dir.mktmpdir("fila-")
        start(config)
        @address = wait_ready
        at_exit { stop }
      rescue StandardError
        stop
        raise
      end

      # A client of this broker; takes the keywords of `Client.new`, and is the caller's to close.
      def client(...)
        Client.new(address, ...)
      end

      # Stops the broker, and removes what it kept. Harmless twice, and in a child process.
      def stop
        return if Process.pid != @owner || @folder.nil?

        end_process if @process
        [@input, @output].compact.each(&:close)
        FileUtils.remove_entry(@folder)
        @folder = nil
      end

      def inspect
        "#<#{self.class} #{address}#{" stopped" if @folder.nil?}>"
      end

      private

      def start(config)
        File.write(path("fila.toml"), config)
        output, theirs = IO.pipe
        @output = output
        input, @input = IO.pipe
        # No settings of this process's own; and no Ctrl-C, which is for the tests.
        environment = ENV.keys.grep(/\AFILA_/).to_h { |name| [name, nil] }
        program = ENV.fetch("FILA_SERVER", PROGRAM)
        pid = Process.spawn(
          environment, program, "--listen", "127.0.0.1:0", "--data-dir", path("data"),
          "--config", path("fila.toml"), "--stop-at-eof",
          in: input, out: theirs, err: path("log"), pgroup: true
        )
        @process = Process.detach(pid)
      rescue Errno::ENOENT, Errno::EACCES => e
        raise Error, "cannot run #{program} (#{e.class.new.message.downcase}); install it with " \
                     "\"pip install fila-server\", or name it in FILA_SERVER", cause: nil
      ensure
        [theirs, input].compact.each(&:close)
      end

      def path(name)
        File.join(@folder, name)
      end

      # Where the broker listens, which its first line says.
      def wait_ready
        deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + START_S
        said = +""
        until (line = said[/^#{READY}(.*)\n/, 1])
          remaining = deadline - Process.clock_gettime(Process::CLOCK_MONOTONIC)
          raise Error, "the broker was not ready within #{START_S} s" unless
            remaining.positive? && @output.wait_readable(remaining)

          said << @output.readpartial(4096)
        end
        JSON.parse(line).fetch("address")
      rescue EOFError
        @process.join(STOP_S)
        log = File.binread(path("log")).scrub("?").strip
        raise Error, "the broker did not start: #{log.byteslice(-SHOWN_BYTES..) || log}", cause: nil
      end

      def end_process
        @input.close
        return if @process.join(STOP_S)

        Process.kill("KILL", @process.pid)
        @process.join
      end
    end
  end
end
