# SPDX-License-Identifier: AGPL-3.0-only
# frozen_string_literal: true

# The one place that states this gem's version; the user agent and the gemspec read it.
module Fila
  VERSION = "0.1.0"
end
