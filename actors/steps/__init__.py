"""The connection on which plans and reports of steps travel."""
