"""The worker: everything that runs on the sandbox's side of the wire, standard library only.

The host ships these sources over the worker's stdin, so the worker and the host can never disagree
about the protocol, and nothing of this package needs to exist where agent code runs. Inside, the
package is called ``bat_worker``; modules therefore import each other relatively.
"""
