# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

require "fila/testing"

# The broker for tests is the real one: these examples need `fila-server`.
RSpec.describe Fila::Testing do
  def alive?(pid)
    Process.kill(0, pid)
    true
  rescue Errno::ESRCH
    false
  end

  def pid_of(broker)
    broker.instance_variable_get(:@process).pid
  end

  # Runs a program in a Ruby of its own; what it prints.
  def run(program)
    IO.popen([RbConfig.ruby, "-I", File.join(__dir__, "../lib"), "-e", program], &:read)
  end

  it "is a real broker that goes away with its block" do
    kept = described_class.broker do |broker|
      broker.client.then do |client|
        clients << client
        client.create_queue("orders")
        id = client.enqueue("orders", text: "hello")
        expect(client.receive("orders", wait_ms: 5000).first).to have_attributes(id:, text: "hello")
      end
      broker
    end
    expect(alive?(pid_of(kept))).to be false
    expect(kept.inspect).to end_with " stopped>"
    expect { kept.stop }.not_to raise_error
  end

  it "takes more of the configuration" do
    described_class.broker(config: "[scheduler]\nquantum = 7\n") do |broker|
      client = broker.client(timeout: 20)
      clients << client
      client.create_queue("orders")
      expect(client.stats("orders").quantum).to eq 7
    end
  end

  it "does not outlive the process that started it, nor does its folder after an exit" do
    start = 'require "fila/testing"; b = Fila::Testing.broker; $stdout.sync = true;' \
            "puts b.instance_variable_get(:@process).pid, b.instance_variable_get(:@folder);"
    pid, folder = run(start).split("\n")
    expect(alive?(pid.to_i)).to be false
    expect(Dir.exist?(folder)).to be false
    pid, folder = run("#{start} Process.kill('KILL', Process.pid)").split("\n")
    eventually("the end of the broker") { !alive?(pid.to_i) }
    FileUtils.rm_rf(folder)
  end

  it "says why a broker did not start" do
    expect { described_class.broker(config: "nonsense") }
      .to raise_error(described_class::Error, /the broker did not start: .*not valid TOML/)
  end

  it "says how to install it" do
    program = 'ENV["FILA_SERVER"] = "/nowhere/fila-server"; require "fila/testing";' \
              "begin; Fila::Testing.broker; rescue Fila::Testing::Error => e; puts e.message; end"
    expect(run(program)).to eq "cannot run /nowhere/fila-server (no such file or directory); " \
                               "install it with \"pip install fila-server\", or name it in " \
                               "FILA_SERVER\n"
  end
end
