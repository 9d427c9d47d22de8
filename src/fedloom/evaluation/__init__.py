"""How good a model is: metrics, accuracy of the global model and per client, personalization by fine-tuning."""
