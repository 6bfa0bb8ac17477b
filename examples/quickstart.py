"""Play one episode with the scripted expert of the task and print its score."""

import gymnasium as gym

import bat_env  # noqa: F401  (registers the environments)
from bat_env.tasks import load_task

env = gym.make("AutoMed-Seg-v0")
observation, info = env.reset(seed=7)
print(observation["text"])

for cell in load_task(info["task"]).script():
    arguments = {"language": cell.language, "code": cell.code}
    step = env.step({"name": "execute_code", "arguments": arguments})
    observation, reward, terminated, truncated, info = step
    print(f"{cell.stage.name}: reward {reward:+.3f}")

step = env.step({"name": "submit_results", "arguments": {}})
observation, reward, terminated, truncated, info = step
result = info["result"]  # None if the infrastructure failed: that is no zero
score = f"score {result['score']:.3f}" if result else f"no score: {info['error']}"
print(f"hand-in: reward {reward:+.3f}, {score}")
env.close()
