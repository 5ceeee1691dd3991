# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "open3"
require "rbconfig"

# A process ends when it wants to, however it leaves the client, and a fork does no harm.
RSpec.describe "A process" do
  before { broker.script("Consume") { broker.stream(frame("a")) } }

  def run(program)
    Open3.capture3(RbConfig.ruby, "-I", File.expand_path("../lib", __dir__), "-e", <<~RUBY)
      require "fila"
      client = Fila::Client.new("#{broker.target}")
      #{program}
    RUBY
  end

  blocked = <<~RUBY
    client.enqueue("orders")
    consumer = client.consume("orders")
    consumer.first
    Thread.new { consumer.each {} }
    Thread.new { client.receive("orders", wait_ms: 60_000) }
    sleep 0.2
  RUBY

  {
    "after close" => "client.close",
    "without close" => "",
    "by exit in the middle" => "exit 0"
  }.each do |how, ending|
    it "exits cleanly #{how}" do
      release = Thread::Queue.new
      broker.script("Receive") do
        release.pop
        Fila::V1::ReceiveResponse.new
      end
      _, errors, status = run(blocked + ending)
      release.close
      # Its threads may complain that the client was closed under them; gRPC must not.
      expect(errors.lines.grep(/assertion|terminated.*GRPC|SEGV/i)).to eq []
      expect(status).to be_success
    end
  end

  it "closes clients that it dropped" do
    open = -> { Fila.const_get(:Lifetime).change(&:size) }
    before = open.call
    # In threads, whose stacks hold nothing afterwards. Ruby's collector is conservative, so one of
    # ten is enough.
    10.times { in_thread { Fila::Client.new(broker.target).enqueue("orders") }.join }
    eventually("a closed client") do
      GC.start
      open.call < before + 10
    end
  end

  in_a_child = <<~RUBY
    client.enqueue("orders")
    consumer = client.consume("orders")
    consumer.first
    child = fork do
      client.enqueue("orders")
    rescue Fila::ClientClosedError => e
      consumer.close
      client.close
      $stdout.puts e.message
      $stdout.flush
  RUBY

  it "cannot use a client after a fork, and does no harm to its parent's" do
    output, errors, status = run(<<~RUBY)
      #{in_a_child}
        exit! true
      end
      Process.wait(child)
      puts $?.success?
      puts client.enqueue("orders", "x").start_with?("x#")
    RUBY
    expect(output.lines.map(&:chomp))
      .to eq ["a client cannot be used after a fork; create one there", "true", "true"]
    expect([errors, status.success?]).to eq ["", true]
  end

  # gRPC's library may shut down the socket that the two share while the child's memory is freed.
  it "goes on after a child that left by a plain exit" do
    output, _, status = run(<<~RUBY)
      #{in_a_child}
      end
      Process.wait(child)
      puts $?.success?
      consumer.pop(timeout: 0.1)
      puts client.enqueue("orders", "x", idempotency_key: "k").start_with?("x#")
      puts consumer.closed?
    RUBY
    expect(output.lines.map(&:chomp))
      .to eq ["a client cannot be used after a fork; create one there", "true", "true", "false"]
    expect(status).to be_success
  end
end
