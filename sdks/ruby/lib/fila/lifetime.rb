# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# Closes what the application forgot to close: at exit, and when nobody holds it any more.
#
# What is behind a Client or a Consumer has threads, and so is never collected; the object that the
# application holds can be, because nothing here refers to it. Ruby kills threads at exit wherever
# they are, and gRPC aborts the process when one of them waits in it: so connections that are still
# open then are closed first.
module Fila
  # Knows the resources that are open. They have `close`, which is harmless twice, and `closed?`,
  # which takes no lock.
  module Lifetime
    @lock = Mutex.new
    @open = {}.compare_by_identity
    @is_over = false

    module_function

    # Closes the resource at exit unless it was ended before.
    def began(resource)
      Lifetime.change { |open| open[resource] = true }
    end

    def ended(resource)
      Lifetime.change { |open| open.delete(resource) }
    end

    # Closes the resource when the handle is collected.
    def watch(handle, resource)
      ObjectSpace.define_finalizer(handle, closing(resource))
    end

    # A method of its own, because a block keeps alive what is around it.
    def closing(resource)
      proc { Lifetime.drop(resource) }
    end

    # A finalizer may run inside any method, whatever locks that one holds. So this takes none.
    def drop(resource)
      Thread.new { resource.close } unless @is_over || resource.closed?
    end

    def change
      @lock.synchronize { yield @open }
    end

    def over
      @is_over = true
      Lifetime.change(&:keys).each(&:close)
    end

    at_exit { over }
  end
  private_constant :Lifetime
end
