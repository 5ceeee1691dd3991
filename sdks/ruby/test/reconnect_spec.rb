# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# How long to wait between attempts.
RSpec.describe Fila::Backoff do
  let(:backoff) { described_class.new(initial: 0.1, maximum: 5.0) }

  it "doubles up to its bound and uses all of the range" do
    delays = (0..7).map { |attempt| backoff.delay(attempt, 1.0) }
    expect(delays).to eq [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    expect(backoff.delay(10**9, 1.0)).to eq 5.0
    expect(backoff.delay(3, 0.0)).to eq 0.0
    expect(backoff.delay(3, 0.5)).to be_within(0.001).of(0.4)
  end

  it "names bounds that make no sense" do
    [[0, 5], [-1, 5], [2, 1]].each do |initial, maximum|
      expect { described_class.new(initial:, maximum:) }
        .to raise_error(ArgumentError, /backoff needs 0 < initial <= maximum, got #{initial}/)
    end
  end

  describe "after a stream was lost" do
    let(:reconnect) { Fila.const_get(:Reconnect).new("orders", backoff) }
    let(:clock) { Fila.const_get(:Clock) }

    before do
      allow(reconnect).to receive(:rand).and_return(1.0)
      allow(clock).to receive(:now).and_return(100.0)
    end

    def ended(error = Fila::UnavailableError.new)
      reconnect.opened
      reconnect.delay(error)
    end

    it "starts anew with a frame" do
      expect([ended, ended, ended]).to eq [0.1, 0.2, 0.4]
      reconnect.received
      expect([ended, ended(nil)]).to eq [0.1, 0.2]
    end

    it "starts anew when the stream lasted" do
      ended
      reconnect.opened
      allow(clock).to receive(:now).and_return(106.0)
      expect(reconnect.delay(nil)).to eq 0.1
    end

    it "raises what trying again would not cure" do
      expect { ended(Fila::QueueNotFoundError.new) }.to raise_error(Fila::QueueNotFoundError)
    end
  end
end
