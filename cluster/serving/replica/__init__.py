"""The code inside of Serve's replicas: the ingress, and a decode group with the choices that it makes."""
