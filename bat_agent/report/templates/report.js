document.querySelectorAll("[data-toggle]").forEach(function (button) {
  button.addEventListener("click", function () {
    var steps = document.querySelectorAll("#" + button.dataset.toggle + " details.step");
    var open = Array.prototype.some.call(steps, function (step) { return !step.open; });
    steps.forEach(function (step) { step.open = open; });
    button.textContent = open ? "Fold all steps" : "Open all steps";
  });
});
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details").forEach(function (item) { item.open = true; });
});
