# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Holds requests at the broker until it is opened.
class Gate
  def initialize
    @arrived = Thread::Queue.new
    @open = Thread::Queue.new
  end

  def pass
    @arrived << true
    @open.pop
  end

  def wait_for_requests(count)
    count.times { @arrived.pop }
  end

  def open
    @open.close
  end
end
