from bat_env.tasks.scripts import Mistake

MISTAKES: tuple[Mistake, ...] = ()
