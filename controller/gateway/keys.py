"""What handlers find in their application."""

from aiohttp import web

from steersman.controller.gateway.desk import Desk
from steersman.controller.gateway.retries import Retries
from steersman.controller.gateway.settings import GatewayConfig

DESK = web.AppKey("desk", Desk)
SETTINGS = web.AppKey("settings", GatewayConfig)
RETRIES = web.AppKey("retries", Retries)
