"""The taskset under the name of this distribution: verifiers imports tasksets by a plain name."""

from bat_agent.integrations.verifiers import BatTaskset

__all__ = ["BatTaskset"]
