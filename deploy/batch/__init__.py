"""Files of batch jobs: put on Kafka line by line, and their results collected, each once, however often it is begun."""
