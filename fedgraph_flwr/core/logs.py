"""The log that Flower's processes keep; without Flower, as the program says."""

from logging import getLogger

log = getLogger("flwr").log  # which is `flwr.common.logger.log`
